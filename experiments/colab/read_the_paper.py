# %% [markdown]
# # Read the paper next to the code
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/read_the_paper.ipynb)
#
# This notebook explains the sections of
# [Attention Is All You Need](https://arxiv.org/abs/1706.03762). It shows the code for each section
# and runs it on a few numbers. The code is printed from the installed package, so it is the code that
# trains. The names of arrays end with their axes: `q_BHQK` has the axes sentences, heads, queries and
# key width. `help(jformer)` lists the letters.

# %%
import importlib.util
import subprocess
import sys

REPOSITORY = "https://github.com/jformer/jformer"
if importlib.util.find_spec("jformer") is None:  # a bare runtime
    package = f"jformer[plot] @ git+{REPOSITORY}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

# %%
# %matplotlib inline
import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jformer

plt.rcParams.update(
    {"figure.figsize": (8, 2.8), "figure.dpi": 60, "figure.constrained_layout.use": True}
)


def show(part):
    """Print the source of a function or class."""
    print(inspect.getsource(part))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


# %% [markdown]
# ## 3.1 Stacks, residuals and norms
#
# The encoder and the decoder are stacks of identical layers. A layer has two or three sub-layers.
# Each sub-layer's output is added to its input, and the sum is normalized.

# %%
from jformer.model.layers import DecoderLayer, EncoderLayer, Residual

show(EncoderLayer.__call__)
show(Residual.__call__)

# %% [markdown]
# The paper normalizes after the sum (post-norm). Most later models normalize the input of the
# sub-layer (pre-norm) and do not normalize the sum. The next cell builds twelve untrained decoder
# layers. For each layer it computes the size of the output signal and the gradient of the parameters.

# %%
from jformer.config import ModelConfig
from jformer.model.attention import causal_mask

D, LAYERS, LENGTH = 64, 12, 20
x_BTD, memory_BSD = normal(1, 4, LENGTH, D), normal(2, 4, LENGTH, D)
readout_DV = normal(3, D, 100) / D**0.5
masks = causal_mask(LENGTH), jnp.ones((4, 1, 1, LENGTH), bool)


def signal_and_gradients(**keys):
    """Return the deviation of the activations and the norm of the gradient for each layer.

    The loss asks for the same word everywhere, because a model first learns word frequencies.
    """
    layer = DecoderLayer(ModelConfig(num_layers=LAYERS, d_model=D, d_ff=4 * D, num_heads=4, **keys))
    run, init = jax.jit(layer.apply), jax.jit(layer.init)

    def loss(stack):
        y_BTD, deviations = x_BTD, []
        for params in stack:
            y_BTD = run(params, y_BTD, masks[0], memory_BSD, masks[1])
            deviations.append(jnp.std(y_BTD))
        log_probs_BTV = jax.nn.log_softmax(jax.nn.standardize(y_BTD) @ readout_DV)
        return -jnp.mean(log_probs_BTV[..., 7]), deviations

    keys = jax.random.split(jax.random.key(5), LAYERS)
    stack = [init(key, x_BTD, masks[0], memory_BSD, masks[1]) for key in keys]
    gradients, deviations = jax.grad(loss, has_aux=True)(stack)
    norms = [
        jnp.linalg.norm(tree["params"]["feed_forward"]["ffn_out"]["kernel"]) for tree in gradients
    ]
    return np.array(deviations), np.array(norms)


# %% [markdown]
# On the left, the pre-norm sum grows from layer to layer, while post-norm keeps it at 1. The right
# plot shows the consequence. Each further pre-norm layer contributes a smaller part of the sum and
# gets a smaller gradient. In post-norm the gradient grows towards the output. Large steps in the
# upper layers are one reason for the warm-up of Section 5.3 (Xiong et al. 2020 give the theory).

# %%
figure, (left, right) = plt.subplots(1, 2)
for position in ("post", "pre"):
    deviations, norms = signal_and_gradients(norm_position=position, initializer="xavier")
    left.plot(range(1, LAYERS + 1), deviations, ".-")
    right.plot(range(1, LAYERS + 1), norms, ".-", label=f"{position}-norm")
left.set(xlabel="layer", title="deviation of the activations", ylim=(0, None))
right.set(xlabel="layer", title="norm of the gradient", ylim=(0, None))
right.legend()
plt.show()

# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
# A query is compared with every key. The softmax of the products gives the weight of each value. The
# next cell compares `attend` with Equation 1 in numpy, for one head:

# %%
from jformer.model.attention import attend

show(attend)


def equation_1(q_QK, k_MK, v_MU):
    logits_QM = q_QK @ k_MK.T / np.sqrt(q_QK.shape[1])
    weights_QM = np.exp(logits_QM)
    weights_QM /= weights_QM.sum(axis=1, keepdims=True)
    return weights_QM @ v_MU


q_QK, k_MK, v_MU = normal(6, 3, 16), normal(7, 5, 16), normal(8, 5, 7)
mask_11QM = jnp.ones((1, 1, 3, 5), bool)
ours_QU = attend(q_QK[None, None], k_MK[None, None], v_MU[None, None], mask_11QM)[0][0, 0]
by_hand_QU = equation_1(*map(np.array, (q_QK, k_MK, v_MU)))
print("largest difference:", np.abs(np.array(ours_QU) - by_hand_QU).max())

# %% [markdown]
# Why divide by the square root of d_k? The dot product of two vectors of d_k random numbers with
# variance 1 has variance d_k. The left plot shows that the deviation follows the square root. The
# right plot shows that without the division, the softmax of wide heads puts nearly all weight on one
# key, where its gradient is almost zero.

# %%
widths = 2 ** np.arange(2, 11)
products = [normal(9, 200, width) @ normal(10, 50, width).T for width in widths]
figure, (left, right) = plt.subplots(1, 2)
left.loglog(widths, [product.std() for product in products], "o", label="measured")
left.loglog(widths, widths**0.5, label="square root of d_k")
left.set(xlabel="d_k", title="deviation of a product")
left.legend()
scaled = [product / width**0.5 for product, width in zip(products, widths, strict=True)]
for name, logits in {"unscaled": products, "scaled": scaled}.items():
    right.semilogx(widths, [jax.nn.softmax(p).max(axis=1).mean() for p in logits], ".-", label=name)
right.set(xlabel="d_k", title="largest weight among 50 keys", ylim=(0, 1))
right.legend()
plt.show()

# %% [markdown]
# ## 3.2.3 Masks
#
# Texts in a batch have different lengths. The shorter ones are padded, and no position may attend to
# padding. A decoder trains on whole targets and must not see the words that it has to predict. In the
# pictures, each row is a query, and it may attend to the bright columns. They are the tokens of a text
# of 5 tokens (left), the positions up to the query (middle), and the positions in both (right).

# %%
from jformer.model.attention import padding_mask

show(padding_mask)
show(causal_mask)

tokens_1L = jnp.array([[7, 8, 9, 7, 2, 0, 0, 0]])  # 2 ends the text, 0 is padding
padding_11LL = jnp.broadcast_to(padding_mask(tokens_1L), (1, 1, 8, 8))
causal_11LL = causal_mask(8)
pictures = {"padding": padding_11LL, "causal": causal_11LL, "both": padding_11LL & causal_11LL}
figure, axes = plt.subplots(1, 3)
for axis, (name, mask_11LL) in zip(axes, pictures.items(), strict=True):
    axis.imshow(mask_11LL[0, 0], vmin=0, vmax=1)
    axis.set(title=name, xlabel="memory", ylabel="query")
plt.show()

# %% [markdown]
# A test of the causal mask: changing a word does not change the logits before it.

# %%
from jformer.model.transformer import Transformer

config = jformer.get_config("tiny", **{"model.num_layers": 1}).model
model = Transformer(config, vocabulary_size=50)
source_BS, target_BT = jnp.arange(10, 16)[None], jnp.arange(20, 28)[None]
params = jax.jit(model.init)(jax.random.key(0), source_BS, target_BT)["params"]
logits = jax.jit(lambda target_BT: model.apply({"params": params}, source_BS, target_BT))
change_T = jnp.abs(logits(target_BT) - logits(target_BT.at[0, 5].set(40))).max(axis=(0, 2))
print("the logits change by", np.round(change_T, 3))

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
# Several attention heads run in parallel, each with its own projection to a smaller width. So a
# position can attend to several positions at once. Each kernel contains all heads:

# %%
from jformer.model.attention import MultiHeadAttention

show(MultiHeadAttention.project_kv)
attention = params["encoder_0"]["self_attention"]
for name, kernel in jax.tree_util.tree_leaves_with_path(attention):
    print(jax.tree_util.keystr(name), kernel.shape)

# %% [markdown]
# The next cell computes the same by hand. It applies `equation_1` to each head and multiplies the
# result by the head's rows of the output kernel. The sum over heads equals the paper's concatenation
# times one matrix.

# %%
x_LD = np.array(normal(11, 6, config.d_model))
by_hand_LD = 0.0
for head in range(config.num_heads):
    q_LK, k_LK, v_LU = (
        x_LD @ attention[name]["kernel"][:, head] for name in ("query", "key", "value")
    )
    by_hand_LD += equation_1(*map(np.array, (q_LK, k_LK, v_LU))) @ attention["out"]["kernel"][head]
module = MultiHeadAttention(config)
ours_BLD = module.apply({"params": attention}, x_LD[None], x_LD[None], jnp.ones((1, 1, 6, 6), bool))
print("largest difference:", np.abs(ours_BLD[0] - by_hand_LD).max())

# %% [markdown]
# ## 3.3 Feed-forward network
#
# The network is two linear maps with a ReLU between them. It treats each position separately and
# identically, so reversing the order of the positions only reverses the output.

# %%
from jformer.model.layers import FeedForward

show(FeedForward.__call__)
network, x_1LD = FeedForward(config), jnp.array(x_LD)[None]
kernels = {"params": params["encoder_0"]["feed_forward"]}
reversed_after = network.apply(kernels, x_1LD, False)[:, ::-1]
reversed_before = network.apply(kernels, x_1LD[:, ::-1], False)
print("largest difference:", jnp.abs(reversed_after - reversed_before).max())

# %% [markdown]
# ## 3.4 Embeddings, and one matrix for three uses
#
# The source embeddings, the target embeddings and the output layer share one matrix. Embeddings are
# multiplied by the square root of d_model. The next cell shows how many parameters sharing saves with
# the vocabulary of about 37,000 from Section 5.1. The cell after it counts the parameters of Table 3.
# The paper's counts are 1 to 4 million higher in all rows except `big`, as if the vocabulary had
# 41,000 entries (see `docs/differences.md`).

# %%
from jformer.run import parameter_shapes

show(Transformer.embed)


def millions(name="base", V=37_000, **keys):
    """Return the number of parameters in millions, without initializing them."""
    model = Transformer(jformer.get_config(name, **keys).model, V)
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model))) / 1e6


for tying in ("all", "output", "none"):
    print(f"base, tying={tying:7} {millions(**{'model.tying': tying}):6.1f} million parameters")

# %%
paper = {
    "base": 65, "B16": 58, "B32": 60, "CN2": 36, "CN4": 50, "CN8": 80, "Cd256": 28, "Cd1024": 168,
    "Cff1024": 53, "Cff4096": 90, "big": 213,
}  # fmt: skip
print("row of Table 3     here    paper")
for row, count in paper.items():
    print(f"{row:15} {millions(f'table3:{row}'):7.1f} {count:8}")

# %% [markdown]
# ## 3.5 Positions
#
# Attention does not depend on the order of its memory. So each position adds a pattern of waves with
# different lengths. In the picture, the short waves are on the left and the long ones on the right.

# %%
from jformer.model.positions import sinusoids

show(sinusoids)
waves_LD = np.array(sinusoids(jnp.arange(100), 64))
plt.imshow(waves_LD, aspect="auto", cmap="RdBu", interpolation="nearest")
plt.gca().set(xlabel="column", ylabel="position")
plt.colorbar()
plt.show()

# %% [markdown]
# The paper chose waves because the pattern at position p + k is a linear function of the pattern at
# position p, with a matrix that depends only on k. The next cell builds this matrix, which rotates
# each pair of columns. So the product of two patterns, plotted below, depends only on their distance.

# %%
k, frequencies = 7, 10000.0 ** (-np.arange(0, 64, 2) / 64)
shift_DD = np.zeros((64, 64))
for pair, angle in enumerate(k * frequencies):
    block = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    shift_DD[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
print("largest difference:", np.abs(waves_LD[:-k] @ shift_DD.T - waves_LD[k:]).max())
for position in (20, 50, 80):
    products_L = waves_LD @ waves_LD[position]
    plt.plot(np.arange(100) - position, products_L, label=f"from position {position}")
plt.gca().set(xlabel="distance", title="product of two positions")
plt.legend()
plt.show()

# %% [markdown]
# ## 5.3 The learning rate
#
# In Equation 3, the rate rises linearly for `warmup_steps` and then decays with the inverse square
# root of the step. Wider models get a smaller rate. The plot shows the peak of the paper's base model.
# A longer warm-up lowers the peak, but does not change the rate after the warm-up.

# %%
from jformer.training.schedules import equation_3

show(equation_3)
steps = np.arange(1, 20_001, 50)
for d_model, warmup_steps in ((512, 4000), (512, 8000), (1024, 4000)):
    keys = {"model.d_model": d_model, "optimizer.warmup_steps": warmup_steps}
    rates = equation_3(jformer.get_config("base", **keys))(steps)
    plt.plot(steps, rates, label=f"d_model {d_model}, warm-up {warmup_steps:,}")
plt.gca().set(xlabel="step", title="learning rate")
plt.legend()
plt.show()

# %% [markdown]
# ## 5.4 Label smoothing
#
# Label smoothing spreads a fraction epsilon of the target over the vocabulary, so the target is less
# than certain. The gradient of a cross-entropy is the prediction minus the target, so the next cell can
# compute the target from the gradient. The left plot shows the target of ten words with epsilon = 0.1.
# The right plot shows the loss against the probability of the right word. Without smoothing, the loss
# falls all the way to certainty. With smoothing, overconfidence increases the loss.

# %%
from jformer.training.loss import cross_entropy


def loss_of(logits_V, epsilon):
    return cross_entropy(logits_V[None, None], jnp.array([[3]]), epsilon)[0][0, 0]


logits_V = normal(12, 10)
target_V = jax.nn.softmax(logits_V) - jax.grad(loss_of)(logits_V, 0.1)
figure, (left, right) = plt.subplots(1, 2)
left.bar(range(10), target_V)
left.set(title="target distribution", xlabel="word")
probabilities = np.linspace(0.02, 0.9999, 300)
for epsilon in (0.0, 0.1, 0.2):
    others = (1 - probabilities[:, None]) / 9 * np.ones(10)
    others[:, 3] = probabilities
    losses = [loss_of(jnp.log(p), epsilon) for p in others]
    right.plot(probabilities, losses, label=f"epsilon {epsilon}")
right.set(title="loss", xlabel="probability of the right word", ylim=(0, 4))
right.legend()
plt.show()

# %% [markdown]
# ## 5.4 Dropout
#
# Dropout sets random elements to zero and scales up the others, which preserves the mean. It applies
# to the sums of embeddings and positions, and to the output of each sub-layer before the residual sum.

# %%
from jformer.model.numerics import Dropout

show(Dropout.__call__)
dropped = Dropout(0.1).apply({}, jnp.ones((200, 200)), True, rngs={"dropout": jax.random.key(0)})
print(
    f"zero: {jnp.mean(dropped == 0):.3f}   mean: {dropped.mean():.3f}   others: {dropped.max():.3f}"
)

# %% [markdown]
# ## 6.1 Beam search
#
# Greedy search takes the most likely word at each step and cannot revise it. Here, a table replaces a
# model of four words: it has the probability of the next word (column) after each word (row). At first
# `a` looks better, but all of its continuations are worse than the continuation of `b`. A beam of two
# keeps both words and finds the better output.

# %%
from jformer.config import BOS, EOS, DecodeConfig
from jformer.decoding.beam import Beam
from jformer.decoding.constraints import Task
from jformer.decoding.search import Sentence, init_search, length_penalty, result_of

show(Beam.extend)
WORDS = ["PAD", "BOS", "EOS", "a", "b", "x", "y"]
table_VV = np.full((7, 7), 1e-9)
table_VV[BOS, 3:5] = 0.6, 0.4
table_VV[3, 5:7] = 0.5, 0.5
table_VV[4, 5] = 1.0
table_VV[5:, EOS] = 1.0


def step(memory, cache, tokens_W, t, beam_indices_WT):
    """Replace a model: return the cache unchanged, and the logits of the next word."""
    return cache, jnp.log(table_VV)[tokens_W]


def search(beam_size, length=6):
    config = DecodeConfig(beam_size=beam_size)
    no_prefix_T, no_spans_T2 = jnp.zeros(length, jnp.int32), jnp.zeros((length, 2), jnp.int32)
    sentence = Sentence((), no_prefix_T, jnp.int32(length - 1), jnp.int32(0), no_spans_T2)
    state = init_search(sentence, (), beam_size)
    while state.busy:
        state = Beam().extend(Task(step, config), sentence, state)
    return result_of(state, config)


for beam_size in (1, 2):
    found = search(beam_size)
    words = " ".join(WORDS[token] for token in found.tokens_WT[0] if token)
    print(f"beam of {beam_size}: {words}   with probability {jnp.exp(found.sums_W[0]):.2f}")

# %% [markdown]
# A longer output has more factors below 1. So the search divides the log-probability by a penalty
# that grows with the length. The paper's alpha = 0.6 is between no penalty (alpha = 0) and almost the
# mean log-probability per word (alpha = 1).

# %%
show(length_penalty)
lengths = np.arange(1, 51)
for alpha in (0.0, 0.6, 1.0):
    penalties = length_penalty(lengths, DecodeConfig(length_penalty=alpha))
    plt.plot(lengths, penalties, label=f"alpha {alpha}")
plt.gca().set(xlabel="tokens", title="length penalty")
plt.legend()
plt.show()

# %% [markdown]
# ## 6.3 Constituency parsing
#
# A parser is a translator whose target is a tree, written as brackets without the words. Nothing else
# changes: `configs/parsing.py` trains the same model on a treebank.

# %%
from IPython.display import SVG, display

from jformer.extras.parsing.picture import tree_svg
from jformer.extras.parsing.trees import linearise, trees_in

text = "(S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .))"
(tree,) = trees_in([text], "example")
print("source:", " ".join(tree.words()))
print("target:", linearise(tree, "XX"))
display(SVG(tree_svg(text)))

# %% [markdown]
# ## A trained model
#
# The next cell loads the run of the notebook `train` if it is in this folder. Otherwise it trains a
# small model in a minute.

# %%
from pathlib import Path

RUN = "runs/tiny-phrases-en-de"
if Path(RUN).exists():
    run = jformer.load(RUN)
else:
    keys = {"train.steps": 300, "optimizer.warmup_steps": 150, "data.num_buckets": 1}
    run = jformer.train(jformer.get_config("tiny", **keys), workdir="runs/small-phrases-en-de")
print(run)

# %% [markdown]
# The next cell prints the n best hypotheses of a beam, each with its score and log-probability. The
# score is the log-probability divided by the length penalty.

# %%
source = "3.5 kilometers and Sweden"
for output in run.hypotheses([source], n_best=4, beam_size=4)[0]:
    print(f"{output.score:8.3f} {output.log_prob:8.3f}  {output.text}")

# %% [markdown]
# The plot shows the attention of the decoder for each head. Each row is the step that predicts the word
# *after* its label, and sums to 1. If the model has trained long enough, one of the heads follows the
# words in order. The figures in the appendix of the paper show heads with other functions.

# %%
from jformer.extras.plots import draw_attention

draw_attention(run.attention(source, run.translate([source])[0]))

# %% [markdown]
# In the repository, `docs/paper_map.md` names the function of each section, and `docs/differences.md`
# lists where jformer differs from the paper.
