"""Counts the matrix products of a traced program: a twin of the formulas in `flops.py`."""

import collections
import math

import jax


def multiply_adds(function, *arguments):
    """Count the multiply-adds of all matrix products in a call, by module.

    Raises `ValueError` for a loop or a branch in it: how often that runs is not known.
    """
    counts = collections.Counter()

    def visit(jaxpr, caller):
        for equation in jaxpr.eqns:
            scope = [*caller, *filter(None, str(equation.source_info.name_stack).split("/"))]
            if equation.primitive.name == "dot_general":
                summed = equation.params["dimension_numbers"][0][0]
                shape = equation.invars[0].aval.shape
                size = math.prod(shape[axis] for axis in summed) * equation.outvars[0].aval.size
                counts[module_name(scope[1:])] += size  # the first scope is the model
            if equation.primitive.name in ("while", "scan", "cond"):
                raise ValueError(f"what a {equation.primitive.name} computes cannot be counted")
            for inner in equation.params.values():
                inner = getattr(inner, "jaxpr", inner)  # of a called function
                if hasattr(inner, "eqns"):
                    visit(inner, scope)

    visit(jax.make_jaxpr(function)(*arguments).jaxpr, [])
    return dict(counts)


def module_name(path):
    # Linen's scopes also contain methods, such as `encoder_0.step`, and formulas of einsum.
    names = [name for name in path if name.isidentifier() and not name.endswith("_residual")]
    if not names:
        return "output"
    stack, _, number = names[0].rpartition("_")
    return "/".join([stack, *names[1:2]]) if number.isdigit() else names[0]
