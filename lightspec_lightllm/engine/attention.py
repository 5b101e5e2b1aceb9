"""Attention over slots, planned once per forward and used by every layer.

A request's rows fold into one query block over its context, together with the query heads that share a key head.
Requests whose slots are runs at equal distances, with about equal contexts and rows, are served by one strided call
that copies no keys; a request with scattered slots is gathered once. Rows are never gathered one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

IntArray = npt.NDArray[np.int64]

_MAX_PADDED_ROWS = 16  # blocks of more rows are not padded to join others
_MAX_CONTEXT_RATIO = 1.5  # longest to mean context of a strided call


@dataclass(frozen=True)
class Block:
    """A request's part of a forward: its last `rows` of `context` positions, all of which have slots."""

    rows: int
    context: int
    slots: IntArray
    run_start: int | None


@dataclass(frozen=True)
class Group:
    """Blocks served by one call: `count` blocks of `rows` rows (padded), `context` slots each (padded)."""

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


def plan_attention(blocks: Sequence[Block], queries_per_key: int) -> AttentionPlan:
    """Group the blocks of a forward. Rows of the batch are those of blocks[0], then blocks[1], ..."""
    members = _group(blocks)
    offsets = np.concatenate([[0], np.cumsum([block.rows for block in blocks])])
    order: list[IntArray] = []
    pad: list[IntArray] = []
    unpad: list[IntArray] = []
    groups: list[Group] = []
    internal = padded = 0
    for indices in members:
        chosen = [blocks[index] for index in indices]
        rows = max(block.rows for block in chosen)
        groups.append(_make_group(chosen, padded, rows, queries_per_key))
        for index, block in zip(indices, chosen, strict=True):
            order.append(np.arange(offsets[index], offsets[index + 1]))
            pad.append(internal + np.minimum(np.arange(rows), block.rows - 1))
            unpad.append(padded + np.arange(block.rows))
            internal += block.rows
            padded += rows
    is_ordered = [index for indices in members for index in indices] == list(range(len(blocks)))
    ordering = None if is_ordered else np.concatenate(order)
    return AttentionPlan(
        groups=tuple(groups),
        order=None if ordering is None else torch.from_numpy(ordering),
        inverse=None if ordering is None else torch.from_numpy(np.argsort(ordering)),
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
    parts = []
    for group in plan.groups:
        count, rows = group.count, group.rows
        block = queries[group.first_row : group.first_row + count * rows].view(count, rows, num_keys, per_key, dim)
        block = block.transpose(1, 2).reshape(count, num_keys, rows * per_key, dim)
        if group.gather is None:
            size = (count, num_keys, group.context, dim)
            strides = (group.stride * dim, keys.stride(0), dim, 1)
            start = group.start * dim
            block_keys = keys.as_strided(size, strides, keys.storage_offset() + start)
            block_values = values.as_strided(size, strides, values.storage_offset() + start)
        else:
            block_keys = keys.index_select(1, group.gather).unsqueeze(0)
            block_values = values.index_select(1, group.gather).unsqueeze(0)
        mixed = scaled_dot_product_attention(block, block_keys, block_values, attn_mask=group.mask)
        mixed = mixed.view(count, num_keys, rows, per_key, dim).transpose(1, 2)
        parts.append(mixed.reshape(count * rows, num_heads * dim))
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
    return mixed if plan.unpad is None else mixed.index_select(0, plan.unpad)


def _make_group(blocks: list[Block], first_row: int, rows: int, queries_per_key: int) -> Group:
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


def _group(blocks: Sequence[Block]) -> list[list[int]]:
    """Indices of the blocks that share a call; blocks that can share lie at equal distances in the cache."""
    groups: list[list[int]] = []
    by_rows: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        if block.run_start is None:
            groups.append([index])
        else:
            by_rows.setdefault(_row_class(block.rows), []).append(index)
    for _, indices in sorted(by_rows.items()):
        indices.sort(key=lambda index: blocks[index].run_start or 0)
        current: list[int] = []
        total = longest = stride = 0
        for index in indices:
            context, start = blocks[index].context, blocks[index].run_start or 0
            distance = start - (blocks[current[-1]].run_start or 0) if current else 0
            balanced = max(longest, context) * (len(current) + 1) <= _MAX_CONTEXT_RATIO * (total + context)
            if current and balanced and (len(current) == 1 or distance == stride):
                stride = distance
                current.append(index)
                total, longest = total + context, max(longest, context)
            else:
                if current:
                    groups.append(current)
                current, total, longest = [index], context, context
        groups.append(current)
    return groups


def _row_class(rows: int) -> int:
    """Blocks of one class are padded to equal rows: 1, 2-4, 5-8, 9-16; larger ones only join their equals."""
    for most in (1, 4, 8, _MAX_PADDED_ROWS):
        if rows <= most:
            return most
    return rows
