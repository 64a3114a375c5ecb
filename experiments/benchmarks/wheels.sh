#!/bin/sh
# Fill the folder wheels for a machine without a package index: about 12 MB of pure Python packages
# that jformer needs in addition to JAX, Flax, optax, orbax, tokenizers and sacrebleu.
set -eu
cd "$(dirname "$0")/../.."
pip download --quiet --no-deps --only-binary=:all: --dest wheels \
  ml_collections tensorboardX sacremoses joblib click filelock
du -sh wheels
