"""Which batch sizes LightLLM captures as CUDA graphs in dynamic mode.

LightLLM's own list has every multiple of 1 + K rows, hundreds of them for a large batch: a fixed round has no other
sizes. A dynamic round may have any, and is replayed at the next captured one, so the list is dense where a row is a
large part of a batch and geometric above. The planner fills a captured size up with drafts.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

from lightspec_lightllm.adapters.lightllm import options
from lightspec_lightllm.errors import ConfigError

logger = logging.getLogger(__name__)

BLOCK_ROWS_FACTOR = 2
"""How many times ``max_verify_rows`` a block drafter's largest graph may have: by default the rows of all requests that
LightLLM captures graphs for at K = 7, of half of them at K = 15. Memory bounds it: the logits of a row alone take 6
bytes per token of the vocabulary, 1.8 GB for 2048 rows of 150 000."""


def graph_sizes(max_rows: int, count: int, multiple_of: int = 1) -> list[int]:
    """At most ``count`` batch sizes, ascending, multiples of ``multiple_of``, the last of them ``max_rows``.

    Every octave has the same power of two of sizes, as many as there is room for; what room is left goes to the
    smallest gaps from below. So 1024 rows in 40 sizes are 1..16, 20, 24, 28, 32, 40, .. 896, 1024.

    Raises:
        ConfigError: there is no such list.
    """
    if count < 1 or max_rows < 1 or multiple_of < 1 or max_rows % multiple_of:
        raise ConfigError(
            "graph sizes: expected at least 1 size and rows that are a multiple of "
            f"{multiple_of}, got {count} sizes and {max_rows} rows"
        )
    units = max_rows // multiple_of
    sizes = _octaves(units, 1)
    if len(sizes) > count:
        kept = {round(place * (len(sizes) - 1) / max(count - 1, 1)) for place in range(count)}
        sizes = [sizes[place] for place in sorted(kept)] if count > 1 else [units]
    per_octave = 2
    while len(sizes) < units and len(finer := _octaves(units, per_octave)) <= count:
        sizes, per_octave = finer, 2 * per_octave
    for low, high in itertools.pairwise(sizes.copy()):
        if len(sizes) < count and high - low > 1:
            sizes.append((low + high) // 2)
    return [multiple_of * size for size in sorted(sizes)]


def _octaves(last: int, per_octave: int) -> list[int]:
    """``per_octave`` sizes from each power of two up to the next, all sizes below the first such octave."""
    sizes, size = {last}, 1
    while size < last:
        sizes.add(size)
        size += max(1, (1 << (size.bit_length() - 1)) // per_octave)
    return sorted(sizes)


def wrap_batch_sizes(original: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """For `CudaGraph.gen_cuda_graph_batch_sizes`, a static method."""

    @functools.wraps(original)
    def gen_cuda_graph_batch_sizes(max_batch_size: int = 8, tp_world_size: int = 1) -> list[int]:
        config = options.current()
        if config is None:
            return original(max_batch_size=max_batch_size, tp_world_size=tp_world_size)
        return graph_sizes(max_batch_size, config.costs.graph_sizes)

    return gen_cuda_graph_batch_sizes


def wrap_verify_must(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """For `TpPartBaseModel._verify_must`, the first call after a model has worked out ``graph_max_batch_size``.

    LightLLM multiplies ``--graph_max_batch_size`` by 1 + K, and buffers of attention back ends by the result; few
    rounds come near. But a block drafter has ``block_rows`` for each request whatever is verified, so its graphs have
    up to `BLOCK_ROWS_FACTOR` times as many: all rows of as many requests as fit.
    """

    @functools.wraps(original)
    def _verify_must(model: Any) -> None:
        original(model)
        config = options.current()
        if config is None:
            return
        most: int = config.costs.max_verify_rows
        block_rows = getattr(model, "block_rows", None)
        if block_rows is not None:
            requests = model.graph_max_batch_size // (1 + config.planner.max_draft_steps)
            most = block_rows * min(requests, BLOCK_ROWS_FACTOR * most // block_rows)
        model.graph_max_batch_size = min(model.graph_max_batch_size, most)

    return _verify_must


def wrap_decode_autotune(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """For `TpPartBaseModel._full_att_decode_autotune`, which times FA3 at sequences of 1 + K rows: no dynamic round
    has that shape, and sizes that 1 + K does not divide would be cut."""

    @functools.wraps(original)
    def _full_att_decode_autotune(model: Any) -> None:
        if options.current() is None:
            original(model)
        else:
            logger.debug("ENABLE_FULL_ATT_DECODE_TUNE has no effect on dynamic rounds, whose shapes vary")

    return _full_att_decode_autotune
