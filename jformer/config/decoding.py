"""config.decode: beam search and sampling."""

import dataclasses
import functools
import re

from jformer import schema
from jformer.schema import Section

# A resumed run may change every key of this section.
key = functools.partial(schema.key, resumable=True)
choice = functools.partial(schema.choice, resumable=True)

SEEDS = (">= 0", "<= 4294967295")  # JAX takes seeds modulo 2^32
SIZES = (">= 1", "<= 4096")
SHARE = ("> 0", "<= 1")
# Strings that decode.keep knows by name.
KINDS = {
    "urls": r"(?:https?://|www\.)\S*[\w/]",
    "tags": r"</?[A-Za-z][^<>]*>",
    "numbers": r"(?<!\w)\d+(?:[.,:/-]\d+)*(?!\w)",
}
BEAM, SAMPLING = ("search", "beam"), ("search", "sampling")


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section):
    path = "config.decode"

    search: str = choice("decoding strategy", "beam", "sampling")
    beam_size: int = key(4, "hypotheses of a beam; 1 is greedy search; Section 6.1", *SIZES)
    n_best: int = key(
        1, "outputs per sentence, or with choose=mbr candidates; with a beam <= beam_size", *SIZES
    )
    choose: str = choice(
        "what is given: the n_best by score, or the one of the n_best with minimum Bayes risk, "
        "which is most like the others; a parser's n_best give one tree, their consensus",
        "score",
        "mbr",
    )
    utility: str = choice("likeness of two outputs, not of trees, for choose=mbr", "chrf", "bleu")
    length_penalty: float = key(
        0.6, "alpha of ((beta + length) / (beta + 1))^alpha; Section 6.1", ">= 0", "<= 10"
    )
    length_penalty_beta: float = key(5.0, "beta of the length penalty; 0: length^alpha", ">= 0")
    diversity: float = key(0.0, "penalty per sibling rank (Li et al. 2016)", ">= 0", only_if=BEAM)
    early_stopping: bool = key(
        False,
        "end the search of a sentence once beam_size hypotheses have ended, as fairseq and "
        "CTranslate2 do; otherwise once no other hypothesis can be better",
        only_if=BEAM,
    )
    min_length: int = key(0, "minimum number of output tokens", ">= 0")
    max_length: int | None = key(
        None, "maximum number of output tokens; unset: only max_extra_length counts", ">= 1"
    )
    max_extra_length: int = key(
        50, "maximum number of output tokens beyond those of the source; Section 6.1", ">= 0"
    )
    temperature: float = key(1.0, "divides the logits", "> 0", only_if=SAMPLING)
    top_k: int = key(0, "sample from the k likeliest tokens; 0: all", ">= 0", only_if=SAMPLING)
    top_p: float = key(
        1.0, "sample from the fewest tokens that hold this probability", *SHARE, only_if=SAMPLING
    )
    seed: int = key(0, "seed of the samples", *SEEDS, only_if=SAMPLING)
    keep: str = key(
        "",
        "strings of a source that its output must contain as they are: a regular expression, or "
        f"some of {', '.join(KINDS)} with commas between; empty: none",
        only_if=BEAM,
    )
    constraint: str = choice(
        "what outputs may be: any tokens, or trees of all words of the source (data.name=parsing)",
        "none",
        "trees",
    )
    long_texts: str = choice(
        "sources with more tokens than data.max_length: cut them, or split at sentences",
        "cut",
        "split",
    )
    alignment_layer: int | None = key(
        None, "decoder layer whose attention gives alignments; unset: the last but one", ">= 1"
    )
    batch_size: int = key(
        64, "sentences searched at a time; in float32 it does not change the output", ">= 1"
    )
    threads: int | None = key(
        None,
        "threads that search side by side, each with a share of batch_size; unset: on a CPU one "
        "per core, as far as each gets 16 sentences; elsewhere 1",
        ">= 1",
    )
    read_ahead: int = key(
        10_000, "lines read, sorted by length and translated before they are written", ">= 1"
    )

    def check(self, decoder_layers: int) -> None:
        """Raise `UserError` for the first value that cannot work with `decoder_layers` layers."""
        if self.search == "beam" and self.n_best > self.beam_size:
            raise self.wrong("n_best", f"must be <= {self.assignment('beam_size')}")
        if self.choose == "mbr" and self.n_best == 1:
            raise self.wrong("n_best", f"must be > 1 for {self.assignment('choose')}")
        if self.max_length is not None and self.min_length >= self.max_length:
            raise self.wrong("min_length", f"must be below {self.assignment('max_length')}")
        names = self.keep.split(",")
        if re.fullmatch("[a-z,]+", self.keep) and not all(name in KINDS for name in names):
            reason = f"the names are {', '.join(KINDS)}; a pattern of letters alone is a mistake"
            raise self.wrong("keep", reason)
        try:
            re.compile(self.keep)
        except re.error as error:
            raise self.wrong("keep", f"is no regular expression: {error}") from error
        self.layer_to_align(decoder_layers)

    @property
    def kept(self) -> re.Pattern | None:
        """Return the pattern of the strings to keep, or None where there are none."""
        names = self.keep.split(",")
        if all(name in KINDS for name in names):
            # In the order of KINDS: a number in a URL is a part of it.
            return re.compile("|".join(KINDS[name] for name in KINDS if name in names))
        return re.compile(self.keep) if self.keep else None

    def layer_to_align(self, decoder_layers: int) -> int:
        """Return the layer whose attention gives alignments; `UserError` if there is none such."""
        if self.alignment_layer and self.alignment_layer > decoder_layers:
            reason = f"must be <= {decoder_layers}, the layers of the decoder"
            raise self.wrong("alignment_layer", reason)
        # The last layer but one aligns best (Garg et al. 2019).
        return self.alignment_layer or max(1, decoder_layers - 1)
