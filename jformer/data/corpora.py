"""Named corpora and plain files to sentence pairs.

Only `\n` ends a line: a U+2028 or a form feed inside a sentence must not shift all that follow.
"""

import dataclasses
import gzip
import zlib
from pathlib import Path

from jformer.config import DataConfig, UserError
from jformer.data import phrases

# Our name of a split and the published name of its files.
MULTI30K = {"train": "train", "validation": "val", "test_2016_flickr": "test_2016_flickr"}


@dataclasses.dataclass(frozen=True)
class Split:
    """Line i of one side is the translation of line i of the other."""

    sources: list[str]
    targets: list[str]

    def __len__(self) -> int:
        return len(self.sources)


def load_splits(config: DataConfig, seed: int, with_train: bool = True) -> dict[str, Split]:
    """`train` and `validation`, and under their own names the splits to be scored at the end."""
    if config.name == "phrases":
        made = phrases.make_splits(
            config.source_language, config.target_language, config.phrases, seed
        )
        return {n: Split(*texts) for n, texts in made.items() if with_train or n != "train"}
    if config.name == "multi30k":
        prefixes = {split: f"{config.directory}/{name}" for split, name in MULTI30K.items()}
    else:
        prefixes = {"train": config.train, "validation": config.validation, "test": config.test}
    if not with_train:
        del prefixes["train"]
    languages = config.source_language, config.target_language
    splits = {split: read_pair(prefix, *languages) for split, prefix in prefixes.items() if prefix}
    return splits


def read_pair(prefix: str, source_language: str, target_language: str) -> Split:
    """`PREFIX.en` and `PREFIX.de`, each also as `.gz`."""
    paths = [find_file(f"{prefix}.{language}") for language in (source_language, target_language)]
    sources, targets = (read_lines(path) for path in paths)
    if len(sources) != len(targets):
        raise UserError(
            f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}: "
            f"line i of one must translate line i of the other"
        )
    if not sources:
        raise UserError(f"{paths[0]} and {paths[1]}: are empty; sentences are needed there")
    return Split(sources, targets)


def find_file(name: str) -> Path:
    for path in (Path(name), Path(f"{name}.gz")):
        if path.is_dir():
            raise UserError(f"{path}: is a directory; a text file is needed there")
        if path.is_file():
            return path
    raise UserError(f"{name}: no such file, and no {name}.gz either; check the prefix and suffix")


def read_lines(path: Path) -> list[str]:
    """Strict UTF-8, decompressed by the name's `.gz`; the last line may lack its `\n`."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return decode_lines(content, str(path))


def decode_lines(content: bytes, name: str) -> list[str]:
    """Lines of UTF-8 bytes; `name` says in an error where they came from."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
                f"{error.start} of the line, {len(lines)} lines in all); convert the file to UTF-8"
            ) from error
    return texts
