"""How many CPU threads a forward uses, measured at start."""

import os
import statistics
import time
from collections.abc import Callable

import torch

_NEEDED_SPEEDUP = 1.2  # to leave a count for another; less is not worth depending on a second idle core
_BUDGET_SECONDS = 0.8
_ROUNDS = 5


def choose_threads(forward: Callable[[], None], usual: int | None = None) -> int:
    """The thread count to serve with: the usual one (1 where none is known), or another that is clearly faster.

    Threads wait for each other at every operation, so more of them lose badly where another process wants a core;
    one is the robust choice and stays unless more win by a fifth. A count that served before stays unless another wins
    by as much, so that a machine on which they are nearly equal does not change it from start to start, and with it
    what was measured for it. Counts are measured in turn, so that a passing load falls on all; medians are compared.
    """
    counts = [1]
    while counts[-1] * 2 <= (os.cpu_count() or 1):
        counts.append(counts[-1] * 2)
    if usual is not None and 1 <= usual <= (os.cpu_count() or 1) and usual not in counts:
        counts = sorted((*counts, usual))
    if len(counts) == 1:
        return 1
    before = torch.get_num_threads()
    times: dict[int, list[float]] = {count: [] for count in counts}
    try:
        forward()  # first touch of weights and cache
        deadline = time.perf_counter() + _BUDGET_SECONDS
        for _ in range(_ROUNDS):
            for count in counts:
                torch.set_num_threads(count)
                started = time.perf_counter()
                forward()
                times[count].append(time.perf_counter() - started)
            if time.perf_counter() > deadline:
                break
    finally:
        torch.set_num_threads(before)
    best = usual if usual in times else 1
    for count in counts:
        if statistics.median(times[best]) >= _NEEDED_SPEEDUP * statistics.median(times[count]):
            best = count
    return best
