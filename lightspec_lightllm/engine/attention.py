"""Attention over slots, planned once per forward and used by every layer.

A request's rows fold into query blocks over its context, together with the query heads that share a key head. A first
part, as many rows as nearly all requests have, is served for all of them by strided calls that copy no keys, as far as
their slots are runs at equal distances with about equal contexts; the rows that some requests bring beyond it follow in
calls of their own. A request with scattered slots is gathered once. Rows are never gathered one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

IntArray = npt.NDArray[np.int64]

_CALL_ROWS = 12  # reading a context once more in a call of its own takes about as long as so many rows over it
_MAX_PADDED_ROWS = 16  # parts of more rows are not padded to join others
_MAX_CONTEXT_RATIO = 1.5  # longest to mean context of a strided call


@dataclass(frozen=True)
class Block:
    """A request's part of a forward: its last `rows` of `context` positions, all of which have slots."""

    rows: int
    context: int
    slots: IntArray
    run_start: int | None


@dataclass(frozen=True)
class Part(Block):
    """Some rows of a block: `first_row` is the first of them in the batch, `context` what the last of them sees."""

    first_row: int = 0


@dataclass(frozen=True)
class Group:
    """Parts served by one call: `count` parts of `rows` rows (padded), `context` slots each (padded)."""

    first_row: int
    count: int
    rows: int
    context: int
    start: int
    stride: int
    gather: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True)
class AttentionPlan:
    """How the rows of a forward are laid out and grouped.

    order    internal row -> row of the batch, None when equal
    inverse  row of the batch -> internal row
    pad      padded row -> internal row, None when nothing is padded
    unpad    internal row -> padded row
    """

    groups: tuple[Group, ...]
    order: torch.Tensor | None
    inverse: torch.Tensor | None
    pad: torch.Tensor | None
    unpad: torch.Tensor | None


def plan_attention(blocks: Sequence[Block], queries_per_key: int, num_slots: int) -> AttentionPlan:
    """Group the blocks of a forward. Rows of the batch are those of blocks[0], then blocks[1], ...

    A call pads contexts, so it reads slots that its requests do not have, none past the ``num_slots`` of the cache.
    """
    order: list[IntArray] = []
    pad: list[IntArray] = []
    unpad: list[IntArray] = []
    groups: list[Group] = []
    internal = padded = 0
    for parts in _group(blocks, num_slots):
        rows = max(part.rows for part in parts)
        groups.append(_make_group(parts, padded, rows, queries_per_key))
        for part in parts:
            order.append(np.arange(part.first_row, part.first_row + part.rows))
            pad.append(internal + np.minimum(np.arange(rows), part.rows - 1))
            unpad.append(padded + np.arange(part.rows))
            internal += part.rows
            padded += rows
    ordering = np.concatenate(order)
    is_ordered = bool((ordering[1:] > ordering[:-1]).all())
    return AttentionPlan(
        groups=tuple(groups),
        order=None if is_ordered else torch.from_numpy(ordering),
        inverse=None if is_ordered else torch.from_numpy(np.argsort(ordering)),
        pad=None if internal == padded else torch.from_numpy(np.concatenate(pad)),
        unpad=None if internal == padded else torch.from_numpy(np.concatenate(unpad)),
    )


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """One layer's attention: queries [rows, heads, dim] (internal order), keys and values [key heads, slots, dim].

    Returns [rows, heads * dim].
    """
    _, num_heads, dim = queries.shape
    num_keys = keys.shape[0]
    per_key = num_heads // num_keys
    if plan.pad is not None:
        queries = queries.index_select(0, plan.pad)
    # By key head first, so that every group is a view: [key heads, padded rows * heads per key head, dim].
    queries = queries.view(-1, num_keys, per_key, dim).transpose(0, 1).reshape(num_keys, -1, dim)
    mixed = torch.empty_like(queries)
    for group in plan.groups:
        count, width = group.count, group.rows * per_key
        first, length = group.first_row * per_key, group.count * width
        if group.gather is None:
            size = (count, num_keys, group.context, dim)
            strides = (group.stride * dim, keys.stride(0), dim, 1)
            start = group.start * dim
            block_keys = keys.as_strided(size, strides, keys.storage_offset() + start)
            block_values = values.as_strided(size, strides, values.storage_offset() + start)
        else:
            block_keys = keys.index_select(1, group.gather).unsqueeze(0)
            block_values = values.index_select(1, group.gather).unsqueeze(0)
        block = queries.narrow(1, first, length).view(num_keys, count, width, dim).transpose(0, 1)
        found = scaled_dot_product_attention(block, block_keys, block_values, attn_mask=group.mask)
        mixed.narrow(1, first, length).view(num_keys, count, width, dim).copy_(found.transpose(0, 1))
    mixed = mixed.view(num_keys, -1, per_key, dim).transpose(0, 1).reshape(-1, num_heads * dim)
    return mixed if plan.unpad is None else mixed.index_select(0, plan.unpad)


def _make_group(blocks: Sequence[Block], first_row: int, rows: int, queries_per_key: int) -> Group:
    context = max(block.context for block in blocks)
    mask = None
    if rows > 1 or any(block.context != context for block in blocks):
        contexts = np.array([block.context for block in blocks])
        own_rows = np.array([block.rows for block in blocks])
        row = np.minimum(np.arange(rows)[None, :], own_rows[:, None] - 1)
        visible = (contexts - own_rows)[:, None] + row + 1
        hidden = np.arange(context)[None, None, :] >= visible[:, :, None]
        bias = np.where(hidden, np.float32(-np.inf), np.float32(0.0))
        mask = torch.from_numpy(np.repeat(bias, queries_per_key, axis=1)).unsqueeze(1)
    head = blocks[0]
    gather = None if head.run_start is not None else torch.from_numpy(head.slots[: head.context].copy())
    start = head.run_start or 0
    stride = (blocks[1].run_start or 0) - start if len(blocks) > 1 else 0
    return Group(first_row, len(blocks), rows, context, start, stride, gather, mask)


def _group(blocks: Sequence[Block], num_slots: int) -> list[list[Part]]:
    """The parts of all blocks, by calls: first parts in strided calls, what is beyond them, scattered blocks."""
    first_rows = np.cumsum([0, *(block.rows for block in blocks)]).tolist()
    shared = _shared_rows([block.rows for block in blocks if block.run_start is not None])
    first: list[Part] = []
    beyond: list[Part] = []
    alone: list[list[Part]] = []
    for block, row in zip(blocks, first_rows, strict=False):
        if block.run_start is None:
            alone.append([Part(block.rows, block.context, block.slots, None, row)])
            continue
        rest = max(block.rows - shared, 0)
        first.append(Part(block.rows - rest, block.context - rest, block.slots, block.run_start, row))
        if rest:
            beyond.append(Part(rest, block.context, block.slots, block.run_start, row + shared))
    by_rows: dict[int, list[Part]] = {}
    for part in beyond:
        by_rows.setdefault(_row_class(part.rows), []).append(part)
    calls = _strided(first, num_slots) if first else []
    return [*calls, *(call for _, parts in sorted(by_rows.items()) for call in _strided(parts, num_slots)), *alone]


def _shared_rows(counts: list[int]) -> int:
    """How many rows all blocks bring in one call, padded where they have fewer, so that rows and calls cost least."""
    distinct = sorted(set(counts))
    if len(distinct) < 2:
        return distinct[0] if distinct else 0
    count = np.array(counts)
    rows = np.array(distinct)[:, None]
    beyond = np.maximum(count - rows, 0)
    cost = len(count) * rows[:, 0] + beyond.sum(axis=1) + _CALL_ROWS * (beyond > 0).sum(axis=1)
    cost[rows[:, 0] > max(distinct[0], _MAX_PADDED_ROWS)] = np.iinfo(cost.dtype).max
    return distinct[int(cost.argmin())]


def _strided(parts: list[Part], num_slots: int) -> list[list[Part]]:
    """Parts that share a call: at equal distances in the cache, with about equal contexts that fit into it."""
    parts = sorted(parts, key=lambda part: part.run_start or 0)
    calls: list[list[Part]] = []
    current: list[Part] = []
    total = longest = stride = 0
    for part in parts:
        start = part.run_start or 0
        distance = start - (current[-1].run_start or 0) if current else 0
        padded = max(longest, part.context)
        balanced = padded * (len(current) + 1) <= _MAX_CONTEXT_RATIO * (total + part.context)
        # Parts come in the order of the cache: the last one is the first to reach its end.
        fits = balanced and start + padded <= num_slots
        if current and fits and (len(current) == 1 or distance == stride):
            stride = distance
            current.append(part)
            total, longest = total + part.context, padded
        else:
            if current:
                calls.append(current)
            current, total, longest = [part], part.context, part.context
    return [*calls, current]


def _row_class(rows: int) -> int:
    """Parts of one class are padded to equal rows: 1, 2-4, 5-8, 9-16; larger ones only join their equals."""
    for most in (1, 4, 8, _MAX_PADDED_ROWS):
        if rows <= most:
            return most
    return rows
