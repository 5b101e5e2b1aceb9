"""The types that loops are compiled for."""

from __future__ import annotations

from numba import config, njit, types

if vars(config)["DISABLE_JIT"]:
    raise ImportError("numba is told not to compile (NUMBA_DISABLE_JIT)")

whole, real, truth = types.int64, types.float64, types.boolean


def array_of(kind, dimensions):
    """Any array of a kind that is read: of whatever strides, and maybe not to be written."""
    return types.Array(kind, dimensions, "A", readonly=True)


ints, ints_2d = array_of(whole, 1), array_of(whole, 2)
reals, reals_2d, reals_3d = array_of(real, 1), array_of(real, 2), array_of(real, 3)
cells_1d, cells_2d = array_of(types.int16, 1), array_of(types.int16, 2)
table = types.Array(real, 2, "C", readonly=True)

# What is written or returned.
new_ints, new_ints_2d = types.Array(whole, 1, "C"), types.Array(whole, 2, "C")
new_reals, new_reals_2d = types.Array(real, 1, "C"), types.Array(real, 2, "C")
new_reals_3d = types.Array(real, 3, "C")
new_cells, new_cells_2d = types.Array(types.int16, 1, "C"), types.Array(types.int16, 2, "C")


def compiled(result, *arguments):
    """Compile for these types, now.

    What returns is at most numbers: to make arrays of results numba calls back into Python, and an interrupt that
    arrives there ends as another error. So arrays that loops fill are made by their callers.
    """
    return njit(result(*arguments), cache=True)
