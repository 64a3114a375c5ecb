"""No command and no function runs code that came with a file: only files that the caller names.

Run as a module, this file opens hostile folders under an audit hook and prints what was run.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

STORED = Path(__file__).with_name("stored_run")
RUN = STORED / "run"
PARTS = {  # of configs whose components are defined in {file}
    "norm": {"model": {"norm": "{file}:Evil"}},
    "optimizer": {"optimizer": {"name": "{file}:Evil"}},
    "corpus": {"data": {"name": "{file}:Evil", "train": ""}},
    "nothing": {},
}


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def evil_files(folder: Path) -> Path:
    """Make hostile files in a folder, all of which make a folder "was-run" when they are run."""
    marker = str(folder / "was-run")
    code = f"import os\nos.mkdir({marker!r})\nfrom flax.linen import LayerNorm as Evil\n"
    pickled = pickle.dumps(Evil(marker))
    for name, changes in PARTS.items():
        run = shutil.copytree(RUN, folder / name)
        (run / "components").mkdir()
        for file in (run / "evil.py", run / "components" / "evil.py"):
            file.write_text(code)
        config = json.loads((run / "config.json").read_text())
        for section, values in changes.items():
            for key, value in values.items():
                config[section][key] = value.format(file=run / "evil.py")
        (run / "config.json").write_text(json.dumps(config))
    for name, pattern in {"vocabulary": "vocabulary.json", "arrays": "checkpoints/*/**/*"}.items():
        run = shutil.copytree(RUN, folder / name)
        for path in filter(Path.is_file, [*run.glob(pattern)]):
            path.write_bytes(pickled)
        (run / "checkpoints" / "3000" / "SHA256SUMS").unlink()
    (folder / "weights.pt").write_bytes(pickled)
    (folder / "words.json").write_bytes(pickled)
    (folder / "sweep.py").write_text("CONFIG = 'tiny:files'\ndef sweep():\n    yield {'seed': 1}\n")
    shutil.copytree(folder / "norm", folder / "swept" / "seed=1")
    return folder


def opened(folder: Path) -> dict[str, int]:
    """Open each of the files in every way; return exit statuses by command."""
    import jformer
    from jformer.extras.interop.safetensors import read
    from jformer.main import main

    pairs = f"--data={STORED / 'test'}"
    corpus = [f"--config.data.{name}={STORED / name}" for name in ("train", "validation")]
    train, words = ["--config=tiny:files", *corpus], f"--vocabulary={folder / 'words.json'}"
    commands = [
        *(["translate", f"--workdir={folder / name}"] for name in ("norm", "vocabulary", "arrays")),
        ["translate", f"--workdir={RUN}", f"--ensemble={folder / 'norm'}"],
        ["evaluate", f"--workdir={RUN}", pairs, f"--against={folder / 'norm'}"],
        ["evaluate", f"--workdir={folder / 'corpus'}"],
        [
            "import",
            f"--from={folder / 'weights.pt'}",
            "--layout=pytorch",
            "--workdir=imported",
            words,
        ],
        [*train, "--workdir=new", words.replace("--", "--config.data.")],
        [*train, "--workdir=new", f"--config.train.init_from={folder / 'norm'}"],
        [*train, f"--workdir={folder / 'norm'}"],
        ["report", *(str(folder / name) for name in PARTS)],
        ["sweep", str(folder / "sweep.py"), f"--workdir={folder / 'swept'}", *corpus],
    ]
    statuses = {}
    for command in commands:
        try:
            statuses[" ".join(command)] = main(["jformer", *command])
        except ValueError:  # of a file that is not what its name says
            statuses[" ".join(command)] = 2
    main(["jformer", "export", f"--workdir={RUN}", "--format=safetensors", "--output=exported"])
    for name in PARTS:
        downloaded = Path(shutil.copytree("exported", f"exported-{name}"))
        shutil.copy(folder / name / "config.json", downloaded)
        os.link(folder / name / "evil.py", downloaded / "evil.py")
        for call, path in ((jformer.load, folder / name), (read, downloaded)):
            try:
                call(path)
                statuses[f"{call.__name__} {name}"] = 0
            except jformer.UserError:
                statuses[f"{call.__name__} {name}"] = 2
    return statuses


def main() -> None:
    run = []

    def watch(event: str, arguments: tuple) -> None:
        if event in ("exec", "compile", "import", "open", "pickle.find_class"):
            text = str(arguments)  # that of a code object names its file
            if "evil.py" in text or (event == "pickle.find_class" and "mkdir" in text):
                run.append(f"{event} {text}")

    sys.addaudithook(watch)
    statuses = opened(Path(sys.argv[1]))
    sys.stdout.write(json.dumps({"run": run, "statuses": statuses}))


def test_no_file_that_came_with_a_run_is_run_by_whatever_opens_it(tmp_path):
    folder = evil_files(tmp_path / "evil-files")
    (tmp_path / "here").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.test_untrusted", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["run"] == []
    assert not (folder / "was-run").exists()
    # The model and the search need none of the others.
    parts = ("optimizer", "corpus", "nothing")
    fine = ("report", *(f"{call} {part}" for call in ("load", "read") for part in parts))
    for command, status in result["statuses"].items():
        assert status == (0 if command.startswith(fine) else 2), f"{command}\n{ended.stderr}"


if __name__ == "__main__":
    main()
