# %% [markdown]
# # Train a Transformer
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/train.ipynb)
#
# `configs/tiny.py` on the embedded corpus: nothing is downloaded but the packages. Minutes on two
# CPU cores, less on a GPU or a TPU.

# %%
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

JFORMER = "https://github.com/jformer/jformer"
bare = importlib.util.find_spec("jformer") is None  # once inside a clone, it would find that
if not Path("configs").exists():  # they are in the repository, beside the package
    if not Path("repository").exists():
        subprocess.run(["git", "clone", "--quiet", JFORMER, "repository"], check=True)
    os.chdir("repository")
if bare:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", ".[plot]"], check=True)

# %% [markdown]
# ## Train
#
# As `python -m jformer.main --config=configs/tiny.py` does. The same cell again goes on where it was
# stopped, or prints the scores of a run that is complete.

# %%
RUN = "runs/tiny-phrases-en-de"
STEPS = 1800

# %%
from jformer.main import main

flags = [
    "--config=configs/tiny.py", f"--workdir={RUN}", f"--config.train.steps={STEPS}",
    "--config.train.evaluate_every=200",
]  # fmt: skip
status = main(["jformer", *flags])

# %% [markdown]
# ## Watch
#
# Also while it trains, from another notebook; `%tensorboard --logdir runs` shows more.

# %%
# %matplotlib inline
from jformer.views.curves import draw_curves
from jformer.views.report import read_run

draw_curves(read_run(Path(RUN)))
# %% [markdown]
# ## Save
#
# The run directory holds all that `restore.ipynb` needs. For Google Drive, mount it and copy the
# zip there.

# %%
import shutil

archive = shutil.make_archive(Path(RUN).name, "zip", Path(RUN).parent, Path(RUN).name)
print(f"{Path(archive).name}: {Path(archive).stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Restore

# %%
import jformer

shutil.unpack_archive(archive, "restored")
run = jformer.load(Path("restored") / Path(RUN).name)
run.translate(["Friday, May 3, 2041", "3.5 kilometers and Sweden"])
