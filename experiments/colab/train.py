# %% [markdown]
# # Train a Transformer
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/train.ipynb)
#
# First `configs/tiny.py` on the embedded corpus: nothing is downloaded but the packages. Minutes on
# two CPU cores, less on a GPU or a TPU. Then the same on two text files of your own.

# %%
import importlib.util
import subprocess
import sys

JFORMER = "git+https://github.com/jformer/jformer"
if importlib.util.find_spec("jformer") is None:  # a bare runtime
    package = f"jformer[plot] @ {JFORMER}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

# %% [markdown]
# ## Train
#
# The corpus is made of phrases of Unicode's CLDR: dates, quantities, names of countries and
# languages. `print(config)` shows every key that can be set, and `help(jformer.get_config)` how.

# %%
import jformer

RUN = "runs/tiny-phrases-en-de"
STEPS = 1800
config = jformer.get_config("tiny", **{"train.steps": STEPS, "train.evaluate_every": 200})

# %% [markdown]
# `watch` is called with the numbers of each line of the log. The same cell again goes on where it
# was stopped (the square button: all is saved), or opens the run if it is complete.

# %%
# %matplotlib inline
from pathlib import Path

from IPython.display import display

from jformer.extras.plots import draw_curves
from jformer.extras.report import read_run

picture = display("The learning curves come with the first validation.", display_id=True)


def watch(step, split, numbers, run):
    """Draw the learning curves again with each score of the validation split."""
    if split == "validation":
        picture.update(draw_curves(read_run(Path(RUN))))


run = jformer.train(config, workdir=RUN, on_metrics=watch)
picture.update(draw_curves(read_run(Path(RUN))))

# %% [markdown]
# ## Translate

# %%
sentences = ["Friday, May 3, 2041", "3.5 kilometers and Sweden"]
for source, output in zip(sentences, run.translate(sentences), strict=True):
    print(f"{source}\n    {output}")

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
#
# `jformer.load` opens a run directory wherever it lies.

# %%
shutil.unpack_archive(archive, "restored")
jformer.load(Path("restored") / Path(RUN).name).translate(sentences)

# %% [markdown]
# ## Train on your own files
#
# Two text files, UTF-8, a sentence in each line: line 7 of the one is the translation of line 7 of
# the other. Put in their names and languages. They lie in this folder, or Colab asks for them in a
# dialog. As an example this writes two small ones, English and Spanish.

# %%
SOURCE, TARGET = "example.en", "example.es"
LANGUAGES = {"data.source_language": "en", "data.target_language": "es"}

# %%
from jformer.data.phrases import make_splits

english, spanish = make_splits("en", "es", 8000, 0)["train"]
for name, lines in {"example.en": english, "example.es": spanish}.items():
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")

# %%
if "google.colab" in sys.modules and not (Path(SOURCE).exists() and Path(TARGET).exists()):
    from google.colab import files

    files.upload()  # opens a dialog: choose both files


def read_lines(name):
    return Path(name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


sources, targets = read_lines(SOURCE), read_lines(TARGET)
if len(sources) != len(targets):
    raise ValueError(
        f"{SOURCE} has {len(sources):,} lines, {TARGET} has {len(targets):,}: each line needs its "
        f"translation in the same line of the other file; an empty one may stand for a missing one"
    )

# %% [markdown]
# A part of the pairs is kept to validate on. A pair that is there twice is taken once, so that none
# is in both parts.

# %%
import random

pairs = list(dict.fromkeys(zip(sources, targets, strict=True)))
random.Random(0).shuffle(pairs)
number = max(1, min(1000, len(pairs) // 20))
validation, training = pairs[:number], pairs[number:]
print(f"{len(training):,} pairs to train on, {len(validation):,} to validate on")

# %% [markdown]
# Some hundred steps show that it learns. For a good model take `STEPS = 20_000` and, with more than
# 100,000 pairs, the config `small` or `base` on a GPU.

# %%
STEPS = 400
own = jformer.get_config("tiny", **LANGUAGES, **{"train.steps": STEPS, "train.metrics_every": 200})
run = jformer.train(own, training, validation, workdir="runs/mine")

# %%
for source, target in validation[:3]:
    print(f"{source}\n    reference  {target}\n    output     {run.translate([source])[0]}")
