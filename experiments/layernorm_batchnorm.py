"""A sweep that compares LayerNorm with BatchNorm, which normalizes over the whole batch.

    jformer sweep experiments/layernorm_batchnorm.py --jobs=2

LayerNorm takes the mean and the variance over the D components of one token. BatchNorm takes them
for each component over all positions of a batch, which include other sentences and their padding.
The points differ in the norm and in the tokens per batch.
"""

CONFIG = "configs/tiny.py"


def sweep():
    for batch_tokens in (64, 512, 4096):
        for norm in ("layer_norm", "experiments/components/batch_norm.py:BatchNorm"):
            yield {
                "model.norm": norm,
                "model.d_model": 64,
                "data.max_length": 64,
                "train.batch_tokens": batch_tokens,
                "train.steps": 400,
                "optimizer.warmup_steps": 100,
                "train.scored": "validation",
            }
