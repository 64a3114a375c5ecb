"""Small machines in place of a model, and searches over lists that know them by heart.

A machine goes from state to state with each token, and each state has its logits for the next one.
A chain's state is the last token; a random machine's state depends on the whole history, so that
one wrong token of it, taken from another hypothesis, shows in all that follows.
"""

import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jformer.components import arguments, find
from jformer.config import BOS, EOS, PAD
from jformer.decoding import pool  # noqa: F401  makes a config an argument of compiled programs
from jformer.decoding.constraints import NO_RULES, Rules, Task
from jformer.decoding.search import Sentence, advance, init_search, result_of

# All machines and searches have these sizes, so that each way to search is compiled once.
STATES, V, T, B = 37, 8, 8, 3
FIRST_WORD = 3


class Machine(NamedTuple):
    logits_SV: np.ndarray
    next_SV: np.ndarray


NOTHING = Machine(np.zeros((STATES, V), np.float32), np.zeros((STATES, V), np.int32))


def random_machine(seed, words, scale=2.0):
    """Logits of PAD and BOS are as high as any; tokens beyond `words` words are impossible."""
    rng = np.random.default_rng(seed)
    logits_SV = (scale * rng.normal(size=(STATES, V))).astype(np.float32)
    logits_SV[:, FIRST_WORD + words :] = -np.inf
    return Machine(logits_SV, rng.integers(0, STATES, (STATES, V)).astype(np.int32))


def chain(rows):
    """`{last: {next: probability}}`; the others have none. From a token without a row all may come.

    A row's probabilities need not sum to 1: the rest is an impossible token's.
    """
    logits_SV = np.zeros((STATES, V), np.float32)
    for last, nexts in rows.items():
        logits_SV[last] = -np.inf
        for token, probability in nexts.items():
            logits_SV[last, token] = math.log(probability)
    return Machine(logits_SV, np.tile(np.arange(V, dtype=np.int32), (STATES, 1)))


def step(machine, cache_WT, tokens_W, t, beam_indices_WT):
    """The step of search.py; its cache is tokens, of which each history is put together anew."""
    cache_WT = cache_WT.at[:, t].set(tokens_W)
    positions_T = jnp.arange(cache_WT.shape[1])
    history_WT = jnp.take_along_axis(cache_WT, beam_indices_WT, axis=0)

    def read(states_W, i):
        return jnp.where(i <= t, machine.next_SV[states_W, history_WT[:, i]], states_W), None

    states_W, _ = jax.lax.scan(read, jnp.zeros_like(tokens_W), positions_T)
    return cache_WT, machine.logits_SV[states_W]


def strategy(config):
    """A pytree, as in a pool, so that a program serves all values of its options."""
    return jax.tree.map(np.asarray, find("config.decode.search", "search", config.search))


def options(config):
    return arguments("search", config.search)


@functools.partial(jax.jit, static_argnames=("W", "T"))
def started(sentences_B, W, T):
    cache_WT = jnp.full((W, T), -1, jnp.int32)
    sentences_B = within(sentences_B, T)
    return jax.vmap(lambda sentence: init_search(sentence, cache_WT, W))(sentences_B)


@jax.jit
def advanced(config, strategy, sentences_B, searches_B, enough, rules=NO_RULES):
    extend = functools.partial(strategy.extend, Task(step, config, rules))
    sentences_B = within(sentences_B, searches_B.live_tokens_WT.shape[-1])
    return advance(extend, sentences_B, searches_B, enough)


@jax.jit
def answers(config, searches_B):
    return jax.vmap(lambda search: result_of(search, config))(searches_B)


def within(sentences_B, T):
    prefix_BT, spans_BT2 = sentences_B.prefix_T[:, :T], sentences_B.spans_T2[:, :T]
    return dataclasses.replace(sentences_B, prefix_T=prefix_BT, spans_T2=spans_BT2)


def search(config, machines, limits, prefixes=(), seeds=(), constraint=None, given=(None, None)):
    """The searches when all are done, and the hypotheses of each machine."""
    sentences_B = sentences(machines, limits, prefixes, seeds, given)
    fresh_B = started(sentences_B, strategy(config).width(config), T)
    rules = Rules(constraint) if constraint else NO_RULES
    searches_B = advanced(config, strategy(config), sentences_B, fresh_B, B, rules)
    return searches_B, found(config, searches_B)[: len(machines)]


def raw(config, searches_B):
    return jax.device_get(answers(config, searches_B))


def found(config, searches_B):
    """Up to `n_best` hypotheses of each sentence."""
    every = raw(config, searches_B)
    return [found_of(jax.tree.map(lambda x, b=b: x[b], every), config.n_best) for b in range(B)]


def sentences(machines, limits, prefixes=(), seeds=(), given=(None, None)):
    """A batch of B; those that lack have the limit 0."""
    lacking = B - len(machines)
    prefix_BT = np.full((B, T), PAD, np.int32)
    for row, prefix in enumerate(prefixes):
        prefix_BT[row, : len(prefix)] = prefix
    seeds_B = np.array([*seeds, *[0] * (B - len(seeds))], np.uint32)
    machines = [*machines, *[NOTHING] * lacking]
    memory_B = jax.tree.map(lambda *leaves: jnp.stack(leaves), *machines)
    limits_B = np.array([*limits, *[0] * lacking], np.int32)
    spans_BT2 = np.zeros((B, T, 2), np.int32)  # no token may replace one of a prefix
    return Sentence(memory_B, prefix_BT, limits_B, seeds_B, spans_BT2, *given)


class Found(NamedTuple):
    """A hypothesis: without what stands after its end."""

    score: float
    log_prob: float
    tokens: list[int]


def found_of(hypotheses, n):
    rows = zip(hypotheses.scores_W, hypotheses.sums_W, hypotheses.tokens_WT.tolist(), strict=True)
    every = [
        Found(float(score), float(log_prob), [token for token in tokens if token != PAD])
        for score, log_prob, tokens in rows
        if score > -np.inf
    ]
    return every[:n]


# From here on without JAX: by the definitions, over lists.


def log_softmax(logits_V):
    logits_V = np.asarray(logits_V, np.float64)
    highest = logits_V.max()
    return logits_V - highest - math.log(np.exp(logits_V - highest).sum())


def state_after(machine, tokens):
    return functools.reduce(lambda s, token: int(machine.next_SV[s, token]), [BOS, *tokens], 0)


def log_probs_after(machine, histories):
    """Of the next token, after each of the histories."""
    return [log_softmax(machine.logits_SV[state_after(machine, tokens)]) for tokens in histories]


def log_prob_of(machine, tokens):
    rows = log_probs_after(machine, [tokens[:i] for i in range(len(tokens))])
    return float(sum(row_V[token] for row_V, token in zip(rows, tokens, strict=True)))


def words_of(machine):
    return [t for t in range(FIRST_WORD, V) if np.isfinite(machine.logits_SV[0, t])]


def penalty(length, config):
    beta = config.length_penalty_beta
    return ((beta + length) / (beta + 1)) ** config.length_penalty


def exhaustive(machine, limit, config, prefix=()):
    """`(ended, open)`: all hypotheses that end within the limit, and those it cuts, best first."""
    words, result = words_of(machine), ([], [])
    for length in range(1, limit + 1):
        candidates = [(0, [*body, EOS]) for body in itertools.product(words, repeat=length - 1)]
        if length == limit:
            candidates += [(1, list(body)) for body in itertools.product(words, repeat=length)]
        for kind, tokens in candidates:
            too_short = kind == 0 and length - 1 < config.min_length
            if tokens[: len(prefix)] == list(prefix) and not too_short:
                total = log_prob_of(machine, tokens)
                result[kind].append(Found(total / penalty(length, config), total, tokens))
    return tuple(sorted(kind, reverse=True) for kind in result)


@dataclasses.dataclass
class Twin:
    """What a beam search over lists finds, and how close the closest of its choices was."""

    best: list[Found]
    steps: int
    margin: float


def beam_over_lists(log_probs_after, limit, config, prefix=(), early_end=True):
    """Beam search, with the children of each hypothesis ranked as in Li et al. (2016).

    `log_probs_after` has a list of histories and gives a row (V,) for each. A beam of 1 is greedy
    search, which ends with the first EOS.
    """
    W, margin, of_beam = config.beam_size, math.inf, options(config)
    opened: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[Found] = []
    t, done = 0, False
    while t < limit and not done:
        ranked: list[tuple[float, float, list[int]]] = []
        rows = log_probs_after([tokens for _, tokens in opened])
        for (total, tokens), row_V in zip(opened, rows, strict=True):
            allowed = [token for token in range(EOS, len(row_V)) if row_V[token] > -math.inf]
            allowed = [token for token in allowed if token != EOS or t >= config.min_length]
            if t < len(prefix):
                allowed = [prefix[t]]
            children = sorted(((total + row_V[token], token) for token in allowed), reverse=True)
            margin = min([margin, *gaps([child for child, _ in children[: 2 * W + 1]])])
            for rank, (child, token) in enumerate(children):
                ranked.append((child - of_beam["diversity"] * rank, child, [*tokens, token]))
        ranked = sorted(ranked, key=lambda item: -item[0])
        margin = min([margin, *gaps([item[0] for item in ranked[: 2 * W + 1]])])
        t += 1
        ended += [
            Found(total / penalty(t, config), total, tokens)
            for _, total, tokens in ranked[:W]
            if tokens[-1] == EOS
        ]
        ended = sorted(ended, reverse=True)
        margin = min([margin, *gaps([one.score for one in ended])])
        ended = ended[:W]
        opened = [(x, tokens) for _, x, tokens in ranked[: 2 * W] if tokens[-1] != EOS][:W]
        bound = max((total for total, _ in opened), default=-math.inf) / penalty(limit, config)
        if len(ended) >= config.n_best and early_end:
            worst = ended[config.n_best - 1].score
            margin = min(margin, abs(worst - bound))
            done = worst >= bound or W == 1
        done = done or (of_beam["early_stopping"] and len(ended) == W)
    unended = [Found(total / penalty(t, config), total, tokens) for total, tokens in opened]
    best = ended or sorted(unended, reverse=True)
    return Twin(best[: config.n_best], t, margin)


def gaps(falling):
    return [a - b for a, b in itertools.pairwise(falling)]
