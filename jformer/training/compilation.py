"""JAX's persistent compilation cache: what one process has compiled, later ones load.

It lies in the user's cache folder, and no work fails for want of it: a damaged program is compiled
again, and a folder that cannot be written is not used.
"""

import contextlib
import glob
import hashlib
import platform
import re
import tempfile
import warnings
from pathlib import Path

import jax

from jformer.config import Config, DataConfig
from jformer.console import say
from jformer.data.cache import cache_folder
from jformer.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
MOST_BYTES = 5 * 10**9  # of all programs, when a process begins
JAX_WARNING = r"Error (?:reading|writing) persistent compilation cache entry for '(.*?)'"


def use_compilation_cache(config: Config) -> None:
    """Keep what JAX compiles from now on, if the config says so; must precede the first program.

    A cache folder that the user has given to JAX is left as it is. Several processes compile each
    for itself: the first alone could write, and one that loads does not take part in what the
    others tune together.
    """
    check_backend()
    chosen = config.compilation_cache
    if chosen == "off" or jax.config.jax_compilation_cache_dir is not None:
        return
    if (chosen == "auto" and not is_reliable()) or jax.process_count() > 1:
        return
    try:
        root = cache_folder(DataConfig()) / "xla"
        folder = root / processor()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        trim(root, MOST_BYTES)
    except (OSError, UserError) as error:
        say(f"compilation cache: not used ({error})")
        return
    repair(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if jax.config.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's default
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def check_backend() -> None:
    """Raise `UserError` if JAX cannot start, as under JAX_PLATFORMS=cuda without a GPU."""
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX raises both
        reason = (str(error).splitlines() or ["the platform is not available"])[0]
        platforms = jax.config.jax_platforms or "unset"
        raise UserError(
            f"JAX_PLATFORMS={platforms}: JAX cannot start ({reason}); `jformer doctor` lists what "
            f"is installed"
        ) from error


def is_reliable(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether JAX loads what it has compiled for this backend.

    On Intel's processors with AVX-512 it refuses its own programs and prints errors (jax#38445).
    Outside Linux the processor is not known here, and large programs have crashed on macOS.
    """
    if jax.default_backend() != "cpu":
        return True
    if not cpuinfo.exists():
        return False
    facts = cpuinfo.read_text()
    return not ("GenuineIntel" in facts and "avx512" in facts)


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Return a name for this kind of processor: a program may have instructions that others lack.

    Machines of several kinds can share a home directory.
    """
    facts = {platform.machine()}
    if cpuinfo.exists():
        kinds = ("model name", "flags", "Features", "CPU ")
        facts |= {line for line in cpuinfo.read_text().splitlines() if line.startswith(kinds)}
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:16]


def trim(root: Path, most: int) -> None:
    """Remove the programs that were used longest ago until all have at most `most` bytes.

    JAX has a limit of its own, but with one a kill at the wrong moment ends all writing for good.
    """
    known = []
    for path in root.rglob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            stat = path.stat()
            known.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    total = sum(size for _, size, _ in known)
    for _, size, path in sorted(known):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= size


def repair(folder: Path) -> None:
    """Remove a program that JAX cannot read or write, instead of a warning at every later start.

    JAX writes it in place: a kill or a full disk leaves part of it, which is never written again.
    """
    show, told = warnings.showwarning, False

    def remove_or_show(message, category, filename, lineno, file=None, line=None):
        nonlocal told
        trouble = re.match(JAX_WARNING, str(message))
        if not trouble:
            show(message, category, filename, lineno, file, line)
            return
        with contextlib.suppress(OSError):  # then it is damaged in the next process, too
            for path in folder.glob(f"{glob.escape(trouble[1])}-*-cache"):
                path.unlink(missing_ok=True)
        if not told:
            told = True
            say(f"compilation cache: {folder}: compiling anew ({str(message).splitlines()[0]})")

    warnings.filterwarnings("always", JAX_WARNING)  # an error would end the work
    warnings.showwarning = remove_or_show
