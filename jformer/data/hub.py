"""Data sets of the Hugging Face hub or folders of Parquet files, read by the package `datasets`.

The package caches its downloads, so the network is needed only once.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jformer.components import name_of
from jformer.config import DataConfig
from jformer.data.corpora import Corpus, Row
from jformer.data.datasets import wanted
from jformer.errors import UserError, import_extra


@dataclasses.dataclass(frozen=True)
class Hub:
    """A data set of the hub, pinned to a commit so that its content cannot change.

    {source} and {target} are the languages, {other} is the one that is not English.
    """

    repository: str
    revision: str = ""
    test: str = "test"  # our name of its split `test`; empty if it has none
    configurations: tuple[str, ...] = ("",)  # the first that exists; "" if it is unnamed
    folder: str = ""  # of a configuration, in a branch of Parquet files
    validation: str = "validation"  # its name of this split

    @property
    def splits(self) -> dict[str, str]:
        """Return our name of each split, with the data set's."""
        splits = {"train": "train", "validation": self.validation, self.test: "test"}
        return {ours: theirs for ours, theirs in splits.items() if ours}


# Other data sets may name a configuration by the pair, in either order, or not at all.
ANY = Hub("", configurations=("{source}-{target}", "{target}-{source}", ""))

HUB = {
    "multi30k": Hub(
        "bentrevett/multi30k", "37e118600232bb5298ca011a8a7e7a44e863c36a", "test_2016_flickr"
    ),
    "iwslt14": Hub(
        "bbaaaa/iwslt14-de-en", "5d811de19f17af7e20474f9017d946d34c8d9112", folder="{other}-en"
    ),
    "iwslt17": Hub(
        "IWSLT/iwslt2017",
        "ada3f7e1378fe8ea9b0f4d70c5f8b973fd79ccf7",
        folder="iwslt2017-{source}-{target}",
    ),
    "wmt14": Hub(
        "wmt/wmt14", "b199e406369ec1b7634206d3ded5ba45de2fe696", "newstest2014", ("{other}-en",)
    ),
    "wmt16": Hub(
        "wmt/wmt16", "41d8a4013aa1489f28fea60ec0932af246086482", "newstest2016", ("{other}-en",)
    ),
    # It has no test split, so no test scores are computed.
    "tatoeba": Hub(
        "sentence-transformers/parallel-sentences-tatoeba",
        "9a586f5cf4b772046b0e77583ee361ff68681b9b",
        test="",
        configurations=("en-{other}",),
        validation="dev",
    ),
}


def open_hub(data: DataConfig, with_train: bool, repository: str = "") -> dict[str, list[Corpus]]:
    """Return the corpora of each split.

    They come from the Parquet files in `data.directory`, from `repository`, which is OWNER/NAME or
    OWNER/NAME@REVISION, or from the repository of a named data set.
    """
    hub = choose(data, repository)
    dataset = load(hub, data)
    corpora = {}
    for ours, theirs in hub.splits.items():
        if ours == "train" and not with_train:
            continue
        # In a folder of Parquet files the package names the split of dev.parquet validation.
        split = theirs if theirs in dataset else ours
        if split not in dataset:
            raise UserError(f"{hub.repository}: has the splits {[*dataset]}; {theirs} is needed")
        corpora[ours] = [open_split(dataset[split], f"{hub.repository}/{split}", data)]
    return corpora


def choose(data: DataConfig, repository: str) -> Hub:
    """Return the data set that `data` selects, with the languages filled in."""
    hub = HUB.get(name_of(data.name), ANY)
    source, target = data.source_language, data.target_language
    other = target if source == "en" else source

    def fill(pattern: str) -> str:
        return pattern.format(source=source, target=target, other=other)

    if data.directory:
        if not Path(data.directory).is_dir():
            raise UserError(f"config.data.directory={data.directory}: is not a directory")
        folder = Path(data.directory).absolute()  # a relative "json" would be read as a file format
        pairs = (hub.folder or "{source}-{target}", *ANY.configurations)
        within = next(path for pair in pairs if (path := folder / fill(pair)).is_dir())
        hub = Hub(str(within), "", hub.test, ANY.configurations, validation=hub.validation)
    elif repository:
        repository, _, revision = repository.partition("@")
        hub = dataclasses.replace(hub, repository=repository, revision=revision)
    if not hub.repository:
        raise data.wrong(
            "name", "needs hub(repository='OWNER/NAME'), or config.data.directory=FOLDER"
        )
    configurations = tuple(fill(pattern) for pattern in hub.configurations)
    return dataclasses.replace(hub, configurations=configurations, folder=fill(hub.folder))


def load(hub: Hub, data: DataConfig) -> Any:
    """Return a `datasets.DatasetDict`, of the first configuration that can be loaded."""
    user = f"config.data.name={data.name}: loading {hub.repository}"
    way_out = f"; or {wanted(data)}" if name_of(data.name) in HUB else ""
    datasets = import_extra("datasets", user, "datasets", way_out)
    configuration, *others = hub.configurations
    try:
        return datasets.load_dataset(
            hub.repository,
            name=configuration or None,
            data_dir=hub.folder or None,
            revision=hub.revision or None,
        )
    # Errors of the network, of files and of formats have no common class.
    except Exception as error:
        if others and isinstance(error, ValueError):  # such as an unknown configuration
            return load(dataclasses.replace(hub, configurations=tuple(others)), data)
        place = f"{hub.repository} of the hub"
        if data.directory:
            place = f"config.data.directory={data.directory}"
        reason = " ".join(str(error).split())
        files = ", ".join(f"{split}.parquet" for split in hub.splits.values())
        way_out = (
            f"put {files} with columns {data.source_language} and {data.target_language} "
            f"into a folder, and set config.data.directory=FOLDER"
        )
        if name_of(data.name) in HUB and not data.directory:
            way_out = wanted(data)
        raise UserError(f"{place}: cannot be loaded ({reason}); or {way_out}") from error


def open_split(dataset: Any, place: str, data: DataConfig) -> Corpus:
    """Open a split with a column per language (or english, non_english), or with `translation`."""
    source, target = data.source_language, data.target_language
    pairs = [(source, target), (f"translation.{source}", f"translation.{target}")]
    if source == "en":
        pairs.append(("english", "non_english"))
    elif target == "en":
        pairs.append(("non_english", "english"))
    dataset = dataset.flatten()
    columns = dataset.column_names
    pair = next((pair for pair in pairs if {*pair} <= {*columns}), None)
    if pair is None:
        raise UserError(f"{place}: has the columns {columns}; {source} and {target} are needed")

    def rows() -> Iterator[Row]:
        for batch in dataset.iter(batch_size=1000):
            yield from zip(batch[pair[0]], batch[pair[1]], strict=True)

    files = tuple(Path(file["filename"]) for file in dataset.cache_files)
    return Corpus((place, place), files, rows)
