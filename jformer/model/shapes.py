"""Names that claim a shape are held to it while JAX traces; the compiled step pays nothing."""


def check_shapes(**arrays) -> None:
    """Each keyword ends in its axes: `check_shapes(q_BQHK=q, k_BMHK=k)`.

    One letter is one size throughout a call, and the axis `1` has size one.
    """
    sizes = {"1": 1}
    for name, array in arrays.items():
        axes = name.rpartition("_")[2]
        if array.ndim != len(axes):
            raise ValueError(f"{name} has {len(axes)} axes, got the shape {array.shape}")
        for axis, size in zip(axes, array.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(
                    f"{name}: axis {axis} is {sizes[axis]} elsewhere, got the shape {array.shape}"
                )
