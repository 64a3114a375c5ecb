#!/bin/sh
# Fill the folder wheels with what jformer needs beside JAX, Flax, optax, orbax, tokenizers and
# sacrebleu: about 12 MB of pure Python, for a machine without a package index.
set -eu
cd "$(dirname "$0")/../.."
pip download --quiet --no-deps --only-binary=:all: --dest wheels \
  ml_collections tensorboardX sacremoses joblib click filelock
du -sh wheels
