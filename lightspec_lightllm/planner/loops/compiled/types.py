"""The types that loops are compiled for, and how."""

from __future__ import annotations

import hashlib
from pathlib import Path

from numba import config, njit, types

if vars(config)["DISABLE_JIT"]:
    raise ImportError("numba is told not to compile (NUMBA_DISABLE_JIT)")
if vars(config).get("USING_SVML"):
    raise ImportError(
        "numba takes exponentials from Intel's SVML, which rounds them otherwise than the C library "
        "(NUMBA_DISABLE_INTEL_SVML=1 lets it compile)"
    )


def identity(folder):
    """What compiled code is kept under on disk: a digest of all sources that its constants and helpers may be from.

    Numba itself only looks at the file that a function is in.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


IDENTITY = identity(Path(__file__).parents[2])

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
    return lambda function: njit(result(*arguments), cache=True)(named(function))


def helper(function):
    """Compile for the types that loops call it with."""
    return njit(cache=True)(named(function))


def named(function):
    """The function, kept on disk under a name that holds the identity of the sources."""
    function.__qualname__ = f"{function.__qualname__}_{IDENTITY}"
    return function
