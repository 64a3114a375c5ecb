"""A sweep that shows why Equation 1 divides by sqrt(d_k): scaled or not, for three head widths.

    jformer sweep experiments/attention_scale.py --jobs=2

Section 3.2.1: the dot product of two vectors with d_k independent components has variance d_k, and
the softmax of large numbers has very small gradients. So the scale should matter less for narrower
heads. The models train on the embedded corpus.
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
