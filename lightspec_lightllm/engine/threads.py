"""How many CPU threads a forward uses, measured at start."""

import os
import statistics
import time
from collections.abc import Callable

import torch

_NEEDED_SPEEDUP = 1.2  # per step up; less is not worth depending on a second idle core
_BUDGET_SECONDS = 0.8
_ROUNDS = 5


def choose_threads(forward: Callable[[], None]) -> int:
    """The thread count to serve with: 1, or more where that is clearly faster.

    Threads wait for each other at every operation, so more of them lose badly where another process wants a core;
    one is the robust choice and stays unless more win by a fifth. Counts are measured in turn, so that a passing
    load falls on all; medians are compared.
    """
    counts = [1]
    while counts[-1] * 2 <= (os.cpu_count() or 1):
        counts.append(counts[-1] * 2)
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
    best = 1
    for count in counts[1:]:
        if statistics.median(times[best]) >= _NEEDED_SPEEDUP * statistics.median(times[count]):
            best = count
    return best
