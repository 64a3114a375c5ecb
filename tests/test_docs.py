"""README and docs/ name files, symbols, tests, keys and flags that exist."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from jformer import main as program
from jformer.cli import parser_of
from jformer.config import Config
from jformer.schema import violation, walk
from tests.documented import (
    MODULES,
    OTHER_PROGRAMS,
    PAGES,
    PROGRAMS,
    RECORDS,
    all_commands,
    blocks,
    inline,
    lay_out,
    shell_commands,
    words,
)

pytestmark = pytest.mark.docs

MAPPED = "".join(
    Path("docs", page).read_text(encoding="utf-8")
    for page in ("paper_map.md", "differences.md", "reliability.md")
)
TEXTS = {page: page.read_text(encoding="utf-8") for page in (*PAGES, *RECORDS)}
TESTS = {path: path.read_text() for path in Path("tests").rglob("test_*.py")}


def test_every_test_that_the_pages_name_in_comments_exists():
    comments = " ".join(re.findall(r"<!--(.*?)-->", MAPPED, re.DOTALL))
    names = set(re.findall(r"\btest_\w+", comments))
    assert names
    for name in names:
        assert any(f"def {name}(" in text for text in TESTS.values()), name


def test_every_file_that_the_pages_name_exists():
    files = set(re.findall(r"`([\w/]+\.(?:py|md))\b", MAPPED))
    assert files
    for file in files:
        assert any(Path(root, file).is_file() for root in (".", "jformer", "tests")), file


def test_every_block_of_code_names_its_language():
    for page in (*PAGES, *RECORDS):
        for block in blocks(page):
            assert block.language in ("sh", "python", "text", "output"), block.place


@pytest.mark.parametrize("source", [*PAGES, *RECORDS, *MODULES], ids=str)
def test_every_line_that_is_pasted_into_a_shell_is_a_command(source):
    """Without a backslash before it, the second line of a command would run by itself."""
    for line in shell_commands(source):
        is_known = re.match(PROGRAMS, line) or line.split()[0] in OTHER_PROGRAMS
        assert is_known, f"{source}: {line!r} is no command"


SECTIONS = "|".join(name for name in vars(Config()) if name not in ("name", "seed"))
KEY = re.compile(
    rf"(?<![\w.])(?:config\.)?((?:{SECTIONS})\.[a-z]\w*)"
    r"(?:=((?:[^\s`,;()\]+'\"|]|\([^()`]*\))+))?(?![\w./(])"
)
FILES = (".py", ".ipynb", ".md", ".safetensors")  # train.py is no key


def test_every_key_that_is_named_exists_and_takes_the_value_that_it_is_given():
    fields = {path: field for path, field, _ in walk(Config())}
    named = 0
    for page, text in TEXTS.items():
        for key, value in KEY.findall(text.replace("\\\n", " ")):
            if key.endswith(FILES):
                continue
            assert key in fields, f"{page}: {key}"
            named += 1
            if value and not re.match(r"[A-Z]{2,}|-1$", value):
                default = fields[key].default
                if default is None and value == "None":
                    continue
                kind = int if default is None else type(default)
                typed = value == "True" if kind is bool else kind(value)
                assert not violation(fields[key], typed), f"{page}: {key}={value}"
    assert named


def test_every_flag_that_is_named_is_one_of_a_command():
    parsers = [parser_of(name, program.COMMANDS) for name in program.COMMANDS]
    known = {flag[2:] for parser in parsers for flag in parser._option_string_actions}
    known |= {"version", "requeue", "signal"}  # the last two are Slurm's
    for page in PAGES:
        for code in inline(page):
            for flag in re.findall(r"^--(\w+)(?![\w.])", code):
                assert flag in known, f"{page}: {code}"


# A sweep without its file is no command line.
COMMANDS = sorted({text for _, text in all_commands() if words(text) not in ([], ["sweep"])})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documented")
    lay_out(folder)
    stored = Path("tests/stored_run/run").absolute()
    for name in ("runs/tiny-phrases-en-de", "runs/heads", "runs/backwards"):
        (folder / name).symlink_to(stored)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_line_is_one_of_the_command(command, folder, capsys, monkeypatch):
    """The last flag is unknown: the error would name any other unknown flag before it."""
    monkeypatch.chdir(folder)
    module = re.search(r"-m ([\w.]+)", command)
    arguments = words(command)
    if "--help" in arguments:
        return
    arguments.append("--last_flag=1")
    if module is None or module[1] == "jformer.main":
        assert program.main(["jformer", *arguments]) == 2
    else:
        found = importlib.util.find_spec(module[1])
        source = (
            Path(found.origin).read_text() + Path("experiments/benchmarks/turns.py").read_text()
        )
        for name in re.findall(r"--(\w+)", command):
            assert re.search(rf'"(--)?{name}"', source) or name == "config", f"{command}: --{name}"
        return
    assert capsys.readouterr().err.startswith("jformer: --last_flag=1: unknown")


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for text in TEXTS.values()
        for names in re.findall(r"'\.\[([\w,]+)\]'", text)
        for extra in names.split(",")
    }
    assert named
    assert named <= extras.keys()
    page = TEXTS[Path("docs/installation.md")]
    assert [extra for extra in extras if f"`{extra}`" not in page] == []
