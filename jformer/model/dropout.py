"""Dropout (Section 5.4), with a random generator that XLA fuses into the train step."""

import math

import jax
import jax.extend.random
import jax.numpy as jnp
from flax import linen as nn
from jax import Array


def mix(bits: Array) -> Array:
    """Return the 32-bit hash "lowbias32" (Chris Wellons, 2018) of each element."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def hash_bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return uniform uint32 bits that depend only on the key and the index of the element.

    The key selects the stride and the offset of the hash's inputs. XLA fuses the dozen operations
    into the consumer of the bits, while JAX's generator takes a fifth of a train step on a CPU.
    """
    stride, start = jax.random.key_data(key)[:2]
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return mix(index * (stride | 1) + start)


def fold_in(words_2: Array, number: Array) -> Array:
    """Return the words of a new key for each number.

    Flax folds the path of a module, a constant, into the key of the step. XLA hashes the path at
    compile time, so that only a multiplication and an XOR of two scalars remain for each module.
    """
    first = mix(jnp.asarray(number, jnp.uint32))
    second = mix(first ^ jnp.uint32(0x9E3779B9))
    # The multiplication makes the order of numbers matter and keeps equal ones from cancelling.
    stride, start = words_2 * jnp.uint32(0x9E3779B1)
    return jnp.stack([stride ^ first, start ^ second])


def split(words_2: Array, shape: tuple[int, ...]) -> Array:
    words_2 = fold_in(words_2, math.prod(shape))  # so that split keys differ from those of fold_in
    numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jax.vmap(fold_in, (None, 0))(words_2, numbers).reshape(*shape, 2)


def random_bits(words_2: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width > 32:
        raise ValueError(f"a dropout key gives random bits of up to 32, not {bit_width}")
    return (hash_bits(words_2, shape) >> (32 - bit_width)).astype(f"uint{bit_width}")


HASH = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jnp.stack([mix(jnp.uint32(seed)), jnp.uint32(0)]),
    split=split,
    random_bits=random_bits,
    fold_in=fold_in,
    name="jformer_hash",
)


def dropout_key(key: Array) -> Array:
    """Convert the key of a step to the hash's, with which keys of modules cost no kernels."""
    return jax.random.wrap_key_data(jax.random.key_data(key)[:2], impl=HASH)


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest so that the mean stays."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        if not train or self.rate == 0:
            return x
        keep = hash_bits(self.make_rng("dropout"), x.shape) >= jnp.uint32(int(self.rate * 2**32))
        # Divided in float32: 1 - rate itself would be rounded in bfloat16, 0.9 to 0.898.
        scaled = (x.astype(jnp.float32) / (1 - self.rate)).astype(x.dtype)
        return jnp.where(keep, scaled, 0)
