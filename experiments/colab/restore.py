# %% [markdown]
# # Restore a run
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/restore.ipynb)
#
# A run directory of jformer is all that is needed: translate with it, look at its n-best lists, its
# attention and its learning curves. What many devices have written is read on one of any kind.

# %%
import importlib.util
import subprocess
import sys

JFORMER = "git+https://github.com/jformer/jformer"
if importlib.util.find_spec("jformer") is None:  # a bare runtime
    package = f"jformer[plot] @ {JFORMER}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

# %% [markdown]
# The run: a folder, also one of Google Drive as `/content/drive/MyDrive/runs/tiny-phrases-en-de`,
# or a `.zip` of one, which Colab asks for in a dialog if it is not there.

# %%
RUN = "runs/tiny-phrases-en-de"

# %%
import shutil
from pathlib import Path

if RUN.startswith("/content/drive"):
    from google.colab import drive

    drive.mount("/content/drive")
if RUN.endswith(".zip"):
    if "google.colab" in sys.modules and not Path(RUN).exists():
        from google.colab import files

        files.upload()
    folder = Path("unpacked") / Path(RUN).stem
    shutil.unpack_archive(RUN, folder)
    configs = folder.rglob("config.json")  # a run may hold others, further down
    RUN = str(min(configs, key=lambda path: len(path.parts)).parent)

# %%
import jax

import jformer

run = jformer.load(RUN)  # or load(RUN, "best"), or a step
size = sum(leaf.size for leaf in jax.tree.leaves(run.params))
print(f"{run.config.name}: {size:,} parameters, step {run.step:,}, on {jax.devices()[0]}")

# %% [markdown]
# ## Translate

# %%
sentences = ["Friday, May 3, 2041", "3.5 kilometers and Sweden"]
for source, output in zip(sentences, run.translate(sentences), strict=True):
    print(f"{source}\n    {output}")

# %% [markdown]
# ## The n best, with their scores
#
# `score` is what the search compares: the log-probability by the length penalty.

# %%
for output in run.hypotheses(sentences[:1], n_best=4, beam_size=4)[0]:
    print(f"{output.score:8.3f} {output.log_prob:8.3f}  {output.text}")

# %% [markdown]
# ## Attention
#
# What each position of the target attends to in the source, head by head.

# %%
# %matplotlib inline
from jformer.extras.plots import draw_attention

source = sentences[1]
draw_attention(run.attention(source, run.translate([source])[0]))

# %% [markdown]
# ## Learning curves

# %%
from jformer.extras.plots import draw_curves
from jformer.extras.report import read_run

draw_curves(read_run(Path(RUN)))
