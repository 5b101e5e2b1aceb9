"""Kernels that numba compiles: kept on disk, checked before they are used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba
import numpy as np

from lightspec_lightllm.errors import ModelError

T = TypeVar("T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
"""Sums in any order, which is what makes loops quick. A key or value that is no number gives rows that are none: to
promise the compiler that there are only numbers (nnan, ninf) saves no time and leaves open what such rows give."""


def checked(compiled: Callable[[bool], T], is_right: Callable[[T], bool], what: str) -> T:
    """``compiled(keep)``, kept on disk if that works.

    Compiling takes seconds, once per machine: what it made is kept beside its source or, where nothing may be written
    there, in the user's cache. What was kept is used if it computes what it should; where it does not, or cannot be
    read or written, it is compiled for this process alone: at every start, until its files are deleted.

    Raises:
        ModelError: numba is told not to compile, or ``what`` is wrong on this machine however it is had.
    """
    if vars(numba.config)["DISABLE_JIT"]:
        raise ModelError(
            f"NUMBA_DISABLE_JIT tells numba not to compile, and {what} that is not compiled is too slow to serve;"
            " unset the variable"
        )
    with suppress(Exception):  # a full disk, a damaged file, no place at all: keeping only saves time
        kept = compiled(True)
        if is_right(kept):
            return kept
    found = compiled(False)
    if not is_right(found):
        raise ModelError(
            f"compiled by numba {numba.__version__}, {what} computes wrong numbers on this machine; install another"
            " version of numba"
        )
    return found


def part(function: _Function) -> _Function:
    """A function that kernels call and that is compiled into each of them. A kernel that is kept is compiled anew when
    its own source changes, not when that of its parts does."""
    compiler: Any = numba.njit(fastmath=FAST_MATH, error_model="numpy")
    compiled: _Function = compiler(function)
    return compiled


@part
def powers(exponents: Any, bits: Any, top: Any, count: Any) -> Any:
    """2^(x - top) in place of the first of ``exponents``, none above ``top``, and their sum.

    A polynomial times a power of two that is made of its bits; to 2e-7, and no less than 2^-126.
    """
    for at in range(count):
        exponent = max(exponents[at] - top, np.float32(-126.0))
        whole = np.floor(exponent)
        rest = exponent - whole
        value = np.float32(1.8775767e-3) * rest + np.float32(8.9893397e-3)
        value = value * rest + np.float32(5.5826318e-2)
        value = value * rest + np.float32(2.4015361e-1)
        value = value * rest + np.float32(6.9315308e-1)
        exponents[at] = value * rest + np.float32(9.9999994e-1)
        bits[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    power = bits.view(np.float32)
    total = np.float32(0.0)
    for at in range(count):
        exponents[at] *= power[at]
        total += exponents[at]
    return total
