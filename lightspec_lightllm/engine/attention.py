"""Attention over slots, planned once per forward and used by every layer.

Rows of decoding and verification, a few per request, go through one call for all requests (see `cpu.row_attention`).
The many rows of a prompt fold into a query block per request over its context, together with the query heads that share
a key head; so do a request's rows whose slots are scattered, for which keys are gathered once. Rows are never gathered
one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lightspec_lightllm.cpu.row_attention import FloatArray, IntArray, RowSchedule, attend_rows

FEW_ROWS = 16
"""Most rows of a request that are served row by row; blocks of matrix products are quicker for more."""


@dataclass(frozen=True)
class Block:
    """A request's part of a forward: its last `rows` of `context` positions, all of which have slots."""

    rows: int
    context: int
    slots: IntArray
    run_start: int | None


@dataclass(frozen=True)
class Call:
    """One block that is served by a call of its own.

    gather  slots to take keys from, None where they are a run from `start` on
    mask    [1, 1, rows * heads per key head, context] added to scores, None for a single row, which sees everything
    """

    first_row: int
    rows: int
    context: int
    start: int
    gather: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True)
class AttentionPlan:
    """How the rows of a forward are served: those of `schedule` together, each of `calls` alone."""

    schedule: RowSchedule | None
    calls: tuple[Call, ...]


def plan_attention(blocks: Sequence[Block], num_heads: int, num_key_heads: int) -> AttentionPlan:
    """Plan a forward whose rows are those of blocks[0], then blocks[1], ..."""
    together: list[tuple[int, int, int, int]] = []
    calls: list[Call] = []
    first_row = 0
    for block in blocks:
        if block.run_start is not None and block.rows <= FEW_ROWS:
            together.append((first_row, block.rows, block.context, block.run_start))
        else:
            calls.append(_make_call(block, first_row, num_heads // num_key_heads))
        first_row += block.rows
    schedule = None
    if together:
        columns = np.array(together, dtype=np.int64).T
        schedule = RowSchedule(*columns, num_key_heads=num_key_heads, num_threads=torch.get_num_threads())
    return AttentionPlan(schedule, tuple(calls))


def attend(queries: FloatArray, keys_values: FloatArray, mixed: FloatArray, plan: AttentionPlan) -> None:
    """One layer's attention: queries [rows, heads, dim], keys_values [key heads then value heads, slots, dim].

    Written to mixed [rows, heads, dim].
    """
    if plan.schedule is not None:
        attend_rows(queries, keys_values, mixed, plan.schedule)
    for call in plan.calls:
        _attend_block(torch.from_numpy(queries), torch.from_numpy(keys_values), torch.from_numpy(mixed), call)


def _attend_block(queries: torch.Tensor, keys_values: torch.Tensor, mixed: torch.Tensor, call: Call) -> None:
    num_heads, dim = queries.shape[1:]
    num_keys = keys_values.shape[0] // 2
    # By key head first: [key heads, rows * heads per key head, dim].
    block = queries.narrow(0, call.first_row, call.rows).view(call.rows, num_keys, num_heads // num_keys, dim)
    block = block.transpose(0, 1).reshape(1, num_keys, -1, dim)
    if call.gather is None:
        seen = keys_values.narrow(1, call.start, call.context)
    else:
        seen = keys_values.index_select(1, call.gather)
    keys, values = seen[None, :num_keys], seen[None, num_keys:]
    found = scaled_dot_product_attention(block, keys, values, attn_mask=call.mask)
    found = found.view(num_keys, call.rows, -1, dim).transpose(0, 1)
    mixed.narrow(0, call.first_row, call.rows).view(call.rows, num_keys, -1, dim).copy_(found)


def _make_call(block: Block, first_row: int, heads_per_key: int) -> Call:
    mask = None
    if block.rows > 1:
        visible = np.arange(block.context - block.rows, block.context) + 1
        hidden = np.arange(block.context) >= visible[:, None]
        bias = np.where(hidden, np.float32(-np.inf), np.float32(0.0))
        mask = torch.from_numpy(np.repeat(bias, heads_per_key, axis=0))[None, None]
    gather = None if block.run_start is not None else torch.from_numpy(block.slots[: block.context].copy())
    return Call(first_row, block.rows, block.context, block.run_start or 0, gather, mask)
