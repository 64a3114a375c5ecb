# %% [markdown]
# # Restore a run
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/restore.ipynb)
#
# This notebook opens the English-German model of the repository, or your own run directory. It
# translates and shows n-best lists, attention and learning curves. A run that trained on many devices
# can be restored on a single device of any kind.

# %%
import importlib.util
import subprocess
import sys

REPOSITORY = "https://github.com/jformer/jformer"
if importlib.util.find_spec("jformer") is None:  # a bare runtime
    package = f"jformer[plot] @ git+{REPOSITORY}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

# %% [markdown]
# `RUN` is a folder or a `.zip` file of a folder. The default is a small English-German model, which
# comes with a clone of the repository. Your own run can be on Google Drive, for example
# `/content/drive/MyDrive/runs/tiny-phrases-en-de`. If the `.zip` file does not exist, Colab opens an
# upload dialog.

# %%
RUN = "repository/experiments/models/tatoeba-en-de"

# %%
import shutil
from pathlib import Path

if RUN.startswith("repository/") and not Path("repository").exists():
    subprocess.run(["git", "clone", "--depth=1", REPOSITORY, "repository"], check=True)
if RUN.startswith("/content/drive"):
    from google.colab import drive

    drive.mount("/content/drive")
if RUN.endswith(".zip"):
    if "google.colab" in sys.modules and not Path(RUN).exists():
        from google.colab import files

        files.upload()
    folder = Path("unpacked") / Path(RUN).stem
    shutil.unpack_archive(RUN, folder)
    configs = folder.rglob("config.json")  # take the outermost, a run may contain others
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
sentences = ["Where is the station?", "She has been living in Berlin for two years."]
for source, output in zip(sentences, run.translate(sentences), strict=True):
    print(f"{source}\n    {output}")

# %% [markdown]
# ## The n best, with their scores
#
# The search compares `score`, the log-probability divided by the length penalty.

# %%
for output in run.hypotheses(sentences[:1], n_best=4, beam_size=4)[0]:
    print(f"{output.score:8.3f} {output.log_prob:8.3f}  {output.text}")

# %% [markdown]
# ## Attention
#
# The plot shows which source positions each target position attends to, for each head.

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
