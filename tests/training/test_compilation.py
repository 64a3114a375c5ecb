"""The compilation cache: what is kept, where, and that no damage to it ends any work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jformer
from jformer.config import Config
from jformer.training import compilation
from jformer.training.compilation import is_reliable, processor, trim, use_compilation_cache
from tests.conftest import small_flags

KEYS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
ON = Config(compilation_cache="on")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's cache folder, in a process to which the user has given no cache for JAX."""
    before = {key: getattr(jax.config, key) for key in KEYS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "repair", lambda folder: None)  # it changes warnings for good
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    yield tmp_path / "cache" / "jformer" / "xla"
    for key, value in before.items():
        jax.config.update(key, value)


def test_it_lies_in_the_users_cache_folder_and_takes_every_program(folder):
    use_compilation_cache(ON)
    assert jax.config.jax_compilation_cache_dir == str(folder / processor())
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


@pytest.mark.parametrize(
    ("chosen", "backend", "used"),
    [
        ("auto", "gpu", True), ("auto", "tpu", True), ("on", "cpu", True), ("off", "gpu", False),
    ],
)  # fmt: skip
def test_it_is_used_where_the_config_says_so(folder, monkeypatch, chosen, backend, used):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    use_compilation_cache(Config(compilation_cache=chosen))
    assert (jax.config.jax_compilation_cache_dir is not None) == folder.exists() == used


@pytest.mark.parametrize(
    ("kind", "reliable"),
    [
        ("vendor_id: GenuineIntel\nflags: sse avx2", True),
        ("vendor_id: GenuineIntel\nflags: sse avx2 avx512f", False),
        ("vendor_id: AuthenticAMD\nflags: sse avx2 avx512f", True),
        ("", False),
    ],
)
def test_by_default_a_processor_whose_programs_jax_refuses_does_without(tmp_path, kind, reliable):
    cpuinfo = tmp_path / "cpuinfo"
    if kind:  # outside Linux there is no such file
        cpuinfo.write_text(kind)
    assert is_reliable(cpuinfo) == reliable


def test_of_several_processes_none_uses_it(folder, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    use_compilation_cache(ON)
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("own", ["", "/of/the/user"])
def test_what_the_user_has_told_jax_stays(folder, own):
    jax.config.update("jax_compilation_cache_dir", own)
    use_compilation_cache(ON)
    assert jax.config.jax_compilation_cache_dir == own
    assert not folder.exists()


def test_a_shortest_time_that_the_user_has_chosen_stays(folder):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 5.0)
    use_compilation_cache(ON)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 5


def test_a_file_in_place_of_the_folder_is_told_in_a_line(folder, capsys):
    folder.parent.mkdir(parents=True)
    folder.touch()
    use_compilation_cache(ON)
    assert jax.config.jax_compilation_cache_dir is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "compilation cache" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told_in_a_line(folder, capsys):
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    use_compilation_cache(ON)
    assert jax.config.jax_compilation_cache_dir is None
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"compilation cache.*\[Errno 13\]", line)


def test_a_user_without_a_home_is_told_in_a_line(folder, monkeypatch, capsys):
    def fail():
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    use_compilation_cache(ON)
    (line,) = capsys.readouterr().err.splitlines()
    assert "compilation cache" in line


def test_processors_of_another_kind_have_another_folder(tmp_path):
    names = []
    for flags in ("sse avx", "sse avx avx512f", "sse avx"):
        speed = len(names)  # changes while the machine runs
        text = f"processor : 0\nmodel name : A\ncpu MHz : {speed}\nflags : {flags}\n"
        (tmp_path / "cpuinfo").write_text(text)
        names.append(processor(tmp_path / "cpuinfo"))
    assert names[0] != names[1]
    assert names[0] == names[2]
    assert processor(tmp_path / "none") == processor(tmp_path / "none")


def test_programs_that_were_not_used_for_longest_are_removed(tmp_path):
    for number, name in enumerate(("a/x-1-cache", "b/y-2-cache", "a/z-3-cache")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000))
    trim(tmp_path, 200)
    assert sorted(path.name for path in tmp_path.rglob("*-cache")) == ["y-2-cache", "z-3-cache"]
    trim(tmp_path, 200)
    assert len([*tmp_path.rglob("*-cache")]) == 2


PROGRAM = """
import collections, jax, resource, signal, sys
import jformer
from jformer.config import Config
from jformer.training.compilation import use_compilation_cache

if "--full" in sys.argv:  # writing more than some bytes fails, as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))
use_compilation_cache(Config(compilation_cache="on"))
x = jax.numpy.ones((7, 7))
sys.stdout.write(f"{jax.jit(lambda x: x @ x)(x).sum()} {jax.jit(lambda x: x + 1)(x).sum()} ")
sys.stdout.write(f"hits {counts['cache_hits']} misses {counts['cache_misses']}")
"""


def start(folder, *options, arguments=()):
    """Run two programs in a process of their own; return what it printed, and its messages."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    for key in KEYS:
        environment.pop(key.upper(), None)
    ran = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM, *arguments],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    results, _, cached = ran.stdout.partition(" hits ")
    hits, _, misses = cached.split()
    assert results == "343.0 98.0"
    return int(hits), int(misses), ran.stderr.splitlines()


@pytest.mark.process
def test_a_damaged_program_is_told_once_and_compiled_and_kept_anew(tmp_path):
    _, compiled, messages = start(tmp_path)
    assert messages == []
    assert start(tmp_path) == (compiled, 0, [])
    programs = sorted(tmp_path.rglob("*-cache"))
    programs[0].write_bytes(programs[0].read_bytes()[:-20])  # as a kill while it is written does
    programs[1].write_bytes(b"")  # as a power cut does
    hits, misses, messages = start(tmp_path, "-W", "error")
    assert misses >= 2
    assert hits + misses == compiled
    assert len(messages) == 1
    assert "Error reading persistent compilation cache entry" in messages[0]  # of JAX
    assert start(tmp_path) == (compiled, 0, [])


@pytest.mark.process
def test_a_full_disk_is_told_in_a_line_and_leaves_nothing_damaged(tmp_path):
    _, misses, messages = start(tmp_path, arguments=["--full"])
    assert len(messages) == 1
    assert "Error writing persistent compilation cache entry" in messages[0]  # of JAX
    assert start(tmp_path) == (0, misses, [])


COMMAND = """
import collections, jax, sys
from jformer.main import main

counts = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name.rpartition("/")[2]]))
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: counts.update([name]))
status = main(["jformer", *sys.argv[1:]])
programs = counts["/jax/core/compile/backend_compile_duration"]  # compiled, or from the cache
sys.stderr.write(f"{counts['cache_hits']} of {programs} programs from the cache\\n")
sys.exit(status)
"""


@pytest.mark.process
def test_a_second_start_compiles_nothing_and_ends_with_the_same_bits(corpus_directory, tmp_path):
    """Trained, stopped half-way and resumed, and translated, with programs from the cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for key in KEYS:
        environment.pop(key.upper(), None)

    def run(*arguments):
        ran = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        hits, _, programs, *_ = ran.stderr.splitlines()[-1].split()
        return ran.stdout, int(hits), int(programs)

    def train(name, *more):
        flags = small_flags(corpus_directory, tmp_path / name)
        return run(*flags, "--config.compilation_cache=on", *more)[1:]

    hits, programs = train("first")
    assert hits < programs
    assert train("second") == (programs, programs)
    train("resumed", "--config.train.steps=6")
    hits, programs = train("resumed")
    assert hits == programs
    runs = [jformer.load(tmp_path / name) for name in ("first", "second", "resumed")]
    assert len({run.params_sha256 for run in runs}) == 1
    source = f"--input={corpus_directory}/test.en"
    texts, hits, programs = zip(
        *(run("translate", f"--workdir={tmp_path}/first", source) for _ in range(2)), strict=True
    )
    assert texts[0] == texts[1] != ""
    assert hits[1] == programs[1]
