"""jformer: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017) in JAX and Flax.

    config = jformer.get_config("tiny:given", **{"train.steps": 500})
    run = jformer.train(config, pairs, validation, workdir="runs/mine")
    run = jformer.load("runs/mine")
    run.translate(["A sentence.", "Another one."])

`get_config` returns a config, `train` trains on pairs of source and target or on the corpus of the
config, and `load` opens a run directory, which `python -m jformer.main` writes as well. User errors
raise `UserError`, whose message contains the fix.

Array names end in their axes: `q_BHQK` has four. The letters are the same in the whole package:

    B sentences          D d_model            V vocabulary
    S source positions   F d_ff               W hypotheses, beam size
    T target positions   H heads              L positions of either side
    Q queries            K key width, d_k     1 an axis of size one
    M memory, the keys   U value width, d_v   X all positions of all hypotheses in a cache
    C continuations of a beam                 R new sentences of a search

Q and M are different letters because they are different axes: in cross-attention the queries are
target positions and the memory is the source. A mask is True where a query may attend.
"""

from typing import TYPE_CHECKING, Any

from jformer.errors import RunError, Stopped, UserError

if TYPE_CHECKING:
    from jformer.api import get_config, load, train

__version__ = "0.1.0"
__all__ = ["RunError", "Stopped", "UserError", "__version__", "get_config", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import a function on first use, so that `import jformer` does not import JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jformer import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
