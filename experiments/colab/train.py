# %% [markdown]
# # Train a Transformer
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/train.ipynb)
#
# This notebook first trains `configs/tiny.py` on the embedded corpus. It downloads only packages.
# Training takes minutes on two CPU cores, and less on a GPU or a TPU. Then it trains the same model on
# two text files of your own.

# %%
import importlib.util
import subprocess
import sys

REPOSITORY = "https://github.com/jformer/jformer"
if importlib.util.find_spec("jformer") is None:  # a bare runtime
    package = f"jformer[plot] @ git+{REPOSITORY}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

# %% [markdown]
# ## Train
#
# The corpus consists of phrases generated from Unicode's CLDR: dates, quantities, and names of
# countries and languages. `print(config)` shows every key that you can set, and
# `help(jformer.get_config)` explains how to set it.

# %%
import jformer

RUN = "runs/tiny-phrases-en-de"
STEPS = 1800
config = jformer.get_config("tiny", **{"train.steps": STEPS, "train.evaluate_every": 200})

# %% [markdown]
# Training calls `watch` with the numbers of each log line. To stop training, press the square button;
# the progress is saved. Run the cell again to resume. If the run is complete, the cell only loads it.

# %%
# %matplotlib inline
from pathlib import Path

from IPython.display import display

from jformer.extras.plots import draw_curves
from jformer.extras.report import read_run

picture = display("The learning curves appear after the first validation.", display_id=True)


def watch(step, split, numbers, run):
    """Redraw the learning curves after each validation."""
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
# The run directory contains everything that `restore.ipynb` needs. To keep it on Google Drive, mount
# the drive and copy the zip file there.

# %%
import shutil

archive = shutil.make_archive(Path(RUN).name, "zip", Path(RUN).parent, Path(RUN).name)
print(f"{Path(archive).name}: {Path(archive).stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Restore
#
# `jformer.load` opens a run directory at any path.

# %%
shutil.unpack_archive(archive, "restored")
jformer.load(Path("restored") / Path(RUN).name).translate(sentences)

# %% [markdown]
# ## Train on your own files
#
# You need two UTF-8 text files with one sentence per line. Each line of one file must be the
# translation of the same line of the other. Set their names and languages below. If the files are not
# in this folder, Colab opens an upload dialog. As an example, the notebook writes two small files in
# German and English.

# %%
SOURCE, TARGET = "example.de", "example.en"
LANGUAGES = {"data.source_language": "de", "data.target_language": "en"}

# %%
from jformer.data.datasets import read_phrases

german, english = zip(*read_phrases("de", "en", 8000)["train"], strict=True)
for name, lines in {"example.de": german, "example.en": english}.items():
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
        f"{SOURCE} has {len(sources):,} lines and {TARGET} has {len(targets):,}: both files need the "
        f"same number of lines; leave a line empty if a translation is missing"
    )

# %% [markdown]
# The next cell keeps some of the pairs for validation. It removes duplicate pairs first, so that no
# pair is in both parts.

# %%
import random

pairs = list(dict.fromkeys(zip(sources, targets, strict=True)))
random.Random(0).shuffle(pairs)
number = max(1, min(1000, len(pairs) // 20))
validation, training = pairs[:number], pairs[number:]
print(f"{len(training):,} pairs to train on, {len(validation):,} to validate on")

# %% [markdown]
# A few hundred steps show that the model learns. For a good model, set `STEPS = 20_000`. If you have
# more than 100,000 pairs, use the config `small` or `base` on a GPU.

# %%
STEPS = 400
own = jformer.get_config("tiny", **LANGUAGES, **{"train.steps": STEPS, "train.metrics_every": 200})
run = jformer.train(own, training, validation, workdir="runs/mine")

# %%
for source, target in validation[:3]:
    print(f"{source}\n    reference  {target}\n    output     {run.translate([source])[0]}")
