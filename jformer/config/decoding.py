"""config.decode: beam search and sampling."""

import dataclasses
import functools

from jformer import schema
from jformer.components import name_of
from jformer.schema import Section

# A resumed run may change every key of this section.
key = functools.partial(schema.key, resumable=True)
component = functools.partial(schema.component, resumable=True)


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section):
    path = "config.decode"

    search: str = component("beam", "search", "decoding strategy")
    beam_size: int = key(4, "hypotheses of a beam; 1 is greedy search; Section 6.1", ">= 1")
    n_best: int = key(1, "outputs per sentence, or candidates for choose", ">= 1")
    choose: str = component("score", "choice", "choice among n_best outputs; score: all, sorted")
    length_penalty: float = key(
        0.6, "alpha of ((beta + length) / (beta + 1))^alpha; Section 6.1", ">= 0"
    )
    length_penalty_beta: float = key(5.0, "beta of the length penalty; 0: length^alpha", ">= 0")
    min_length: int = key(0, "minimum number of output tokens", ">= 0")
    max_length: int | None = key(None, "maximum number of output tokens", ">= 1")
    max_extra_length: int = key(
        50, "maximum number of output tokens beyond the source's; Section 6.1", ">= 0"
    )
    constraint: str = component("none", "constraint", "tokens that may come next in an output")
    batch_size: int = key(64, "sentences decoded at a time", ">= 1")
    read_ahead: int = key(2_000, "lines read and sorted by length; 1: one line at a time", ">= 1")

    def check(self) -> None:
        super().check()
        if name_of(self.search) == "beam" and self.n_best > self.beam_size:
            raise self.wrong("n_best", f"must be <= {self.assignment('beam_size')}")
        if name_of(self.choose) == "mbr" and self.n_best == 1:
            raise self.wrong("n_best", f"must be > 1 for {self.assignment('choose')}")
