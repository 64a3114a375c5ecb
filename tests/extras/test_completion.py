"""The completion of each shell, by what the shell makes of keys that are typed."""

import os
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from jformer.main import COMMANDS, main

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
# In place of the program: prints its arguments, each between brackets.
PROGRAM = {
    "bash": "jformer() { printf '<%s>' \"$@\"; }",
    "zsh": "jformer() { printf '<%s>' \"$@\"; }",
}


@pytest.fixture(params=SHELLS)
def typed(request, tmp_path, monkeypatch, capsys):
    """Return a function from keys, with tabs, to the arguments that a shell starts jformer with."""
    if not shutil.which(request.param):
        pytest.skip(f"needs {request.param}")
    assert main(["jformer", "completion", request.param]) == 0
    script = tmp_path / "completion"
    script.write_text(f"{PROGRAM[request.param]}\n{capsys.readouterr().out}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.en").touch()
    terminal = "import pty, sys; pty.spawn(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", terminal, *SHELLS[request.param]], cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"},
    )  # fmt: skip

    def ask(keys, end):
        """Type the keys, and return what is printed up to `end`."""
        process.stdin.write(keys.encode())
        process.stdin.flush()
        seen, until = "", time.monotonic() + 60
        while end not in seen:
            assert select.select([process.stdout], [], [], until - time.monotonic())[0], seen
            read = os.read(process.stdout.fileno(), 65536)
            assert read, seen
            seen += read.decode()
        return seen

    def typed(keys):
        seen = ask(f"{keys}; echo EN''D\n", ">END")
        return re.findall("<([^<>]*)>", re.findall("(?:<[^<>]*>)+END", seen)[-1])

    with process:
        ask("source ./completion; echo RE''ADY\n", "READY")
        yield typed
        process.kill()


CASES = [
    ("transl\t--pref\t", ["translate", "--prefix"]),
    ("translate --wo\tdat\t", ["translate", "--workdir", "data"]),
    ("translate --form\tj\t", ["translate", "--format", "jsonl"]),
    ("score --inp\t --data data/i\t", ["score", "--inp", "--data", "data/input.en"]),
    ("--work\tdat\t", ["--workdir", "data"]),
    ("train --config.model.pos\trotary", ["train", "--config.model.positions", "rotary"]),
    ("evaluate --config.model.pos\t", ["evaluate", "--config.model.pos"]),
]


@pytest.mark.process
def test_commands_flags_keys_values_and_files_are_completed(typed):
    for keys, arguments in CASES:
        assert [word.rstrip("/") for word in typed(f"jformer {keys}")] == arguments


@pytest.mark.parametrize("shell", ["bash", "tcsh"])
def test_the_script_has_every_command_with_its_flags(shell, capsys):
    assert main(["jformer", "completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "dry_run", "config.model.d_model"):
        assert word in script
