"""Runs of several processes: join them by `jax.distributed`, and check that they agree."""

import contextlib
import json
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jformer.config import Config, ParallelConfig
from jformer.console import be_quiet
from jformer.errors import UserError
from jformer.schema import flatten

log = logging.getLogger(__name__)

TIMEOUT = 300  # seconds to wait for another process


def join(parallel: ParallelConfig) -> None:
    """Connect to the other processes of the run, if any; must precede any other use of JAX."""
    if not parallel.coordinator or jax.distributed.is_initialized():
        return
    by_hand: dict[str, Any] = {}
    number: int | str = "all"
    if parallel.address:
        host, port, index, number = parallel.address
        by_hand = {
            "coordinator_address": f"{host}:{port}",
            "num_processes": number,
            "process_id": index,
        }
        if index == 0:
            check_port(parallel, port)
    log.info(f"waiting for {number} processes, at most {TIMEOUT} s ...")
    # JAX's own handler would swallow a SIGTERM that comes before `stopping` has set its own.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **by_hand,
            initialization_timeout=TIMEOUT,
            heartbeat_timeout_seconds=TIMEOUT,
        )
    except ValueError as error:
        raise UserError(
            f"config.parallel.coordinator={parallel.coordinator}: JAX finds no Slurm job, TPU pod "
            f"or other cluster here ({error}); set it to HOST:PORT/INDEX/NUMBER"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"config.parallel.coordinator={parallel.coordinator}: the processes did not find each "
            f"other ({str(error).splitlines()[0]})"
        ) from error
    if not is_first():
        logging.getLogger("jformer").setLevel(logging.WARNING)
        be_quiet()


def check_port(parallel: ParallelConfig, port: int) -> None:
    """Raise `UserError` if process 0 cannot listen on its port, where JAX would crash."""
    both = socket.has_dualstack_ipv6()  # as gRPC listens
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise parallel.wrong(
            "coordinator",
            f"this is process 0, and it cannot listen on port {port} ({error.strerror}); choose "
            f"another port, the same in all processes",
        ) from error


def check_shared(workdir: Path) -> None:
    """Raise `UserError` in every process if one of them does not see the first one's `workdir`."""
    if jax.process_count() == 1:
        return
    name = of_first(lambda: put_mark(workdir), True)
    if not name:
        return
    seen = multihost_utils.process_allgather(np.bool_((workdir / name).exists()))
    if is_first():
        (workdir / name).unlink()
        with contextlib.suppress(OSError):  # it holds a run
            workdir.rmdir()
    if not seen.all():
        others = ", ".join(str(number) for number in np.flatnonzero(~seen))
        raise UserError(
            f"workdir={workdir}: process {others} does not share this folder with process 0; all "
            f"processes save and restore together, so name a folder on a file system they share"
        )


def put_mark(workdir: Path) -> str:
    """Make a file, and return its name; empty if nothing can be written there.

    The name is new: a network file system caches which of the known names there are.
    """
    name = f".shared-{secrets.token_hex(8)}"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / name).touch()
    except OSError:
        return ""
    return name


def check_same(config: Config, **facts: Any) -> None:
    """Raise `UserError` in every process if one of them has another config or other `facts`."""
    if jax.process_count() == 1:
        return
    own = {f"config.{name}": value for name, value in flatten(config).items()}
    del own["config.parallel.coordinator"]  # it has the index of the process
    mine = json.dumps({"the version of JAX": jax.__version__, **own, **facts})
    first = json.loads(text_of_first(mine))
    differing = [
        f"{name} is {value!r}, and {first.get(name)!r} in process 0"
        for name, value in json.loads(mine).items()
        if value != first.get(name)
    ]
    everywhere = multihost_utils.process_allgather(np.int32(len(differing)))
    if differing:
        raise UserError(f"process {jax.process_index()}: {'; '.join(differing)}")
    if everywhere.any():
        others = ", ".join(str(number) for number in np.flatnonzero(everywhere))
        raise UserError(f"process {others} has another config or another corpus than this one")


def is_first() -> bool:
    """Return whether this is the process that writes and prints for all."""
    return jax.process_index() == 0


def of_first(find: Callable[[], str], together: bool) -> str:
    """Call `find` in the first process alone, and return its result in all.

    Where the processes are not `together`, each calls it for itself.
    """
    if not together:
        return find()
    return text_of_first(find() if is_first() else "")


def text_of_first(text: str) -> str:
    """Return the first process's `text` in all of them."""
    content = text.encode()
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    padded = np.frombuffer(content[:length].ljust(length), np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(padded)).decode() if length else ""
