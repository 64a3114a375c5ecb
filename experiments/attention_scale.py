"""A sweep that shows why Equation 1 divides by sqrt(d_k): with and without, by head width.

    jformer sweep experiments/attention_scale.py --jobs=2

Section 3.2.1: the dot product of two vectors of d_k independent components has the variance d_k,
and a softmax over large numbers has hardly any gradient. So the narrower the heads, the less the
division should matter. The models are trained on the embedded corpus.
"""

CONFIG = "configs/tiny.py"


def sweep():
    for num_heads in (1, 4, 16):  # of width 128, 32, 8
        for scaled in (True, False):
            yield {
                "model.num_heads": num_heads,
                "model.attention": f"dot_product(scaled={scaled})",
                "train.scored": "validation",
            }
