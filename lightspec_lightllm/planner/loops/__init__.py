"""The planner's inner loops over requests and drafts, each twice: in numpy (`plain`), compiled by numba (`compiled`).

Both give the same results bit for bit: whole numbers, or the same floating-point operations in the same order. Numpy's
is what is meant; the compiled one only takes less time, and is used where numba is installed (extra ``fast``).
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from lightspec_lightllm.planner.loops import plain
from lightspec_lightllm.planner.loops.interface import Loops


class Inner:
    """The loops in use, of the whole process: which ones changes no result.

    Attributes:
        loops: `plain` until `prepare` finds the compiled ones.
        described: ``compiled``, or ``numpy`` and why.
        prepared: whether that was decided.
        unexpected: whether numba is installed and yet not used.
    """

    def __init__(self) -> None:
        self.loops: Loops = plain
        self.described = "numpy: no planner was made yet"
        self.unexpected = False
        self.prepared = False

    def prepare(self) -> None:
        """Compile the loops, or read them as they were compiled once before; the first call decides.

        Whatever is in the way, from numba not being installed to a result that differs from numpy's, leaves `plain`.
        """
        if self.prepared:
            return
        try:
            self.loops = _checked_loops()
            self.described = "compiled"
        except Exception as error:  # noqa: BLE001 - numba and LLVM fail in any way; plans are the same without them
            absent = isinstance(error, ModuleNotFoundError) and error.name == "numba"
            why = "numba is not installed (extra fast)" if absent else f"{type(error).__name__}: {error}"
            self.described = f"numpy: {why}"
            self.unexpected = not absent
        self.prepared = True  # an interrupt before this leaves it to the next planner


def _checked_loops() -> Loops:
    """The compiled loops, compiled once more where what was kept on disk does not give what numpy gives."""
    compiled = cast(Any, importlib.import_module("lightspec_lightllm.planner.loops.compiled"))
    check = importlib.import_module("lightspec_lightllm.planner.loops.check")
    try:
        check.compare(plain, compiled)
    except check.LoopsDifferError:
        compiled.recompile()
        check.compare(plain, compiled)
    return cast(Loops, compiled)


INNER = Inner()
