from itertools import pairwise
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from lightspec_lightllm.engine.attention import Block, attend, plan_attention
from lightspec_lightllm.engine.row_attention import RowSchedule, row_kernel

NUM_SLOTS, KEY_HEADS, HEADS, DIM = 600, 2, 6, 8


def block(rows: int, context: int, start: int) -> Block:
    return Block(rows, context, np.arange(start, start + context), start)


def scattered(rows: int, context: int, seed: int) -> Block:
    return Block(rows, context, np.random.default_rng(seed).permutation(NUM_SLOTS)[:context].astype(np.int64), None)


def queries_of(num_rows: int, seed: int = 0) -> torch.Tensor:
    """Rows as a layer has them: queries in front of keys and values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, HEADS + 2 * KEY_HEADS, DIM, generator=generator)[:, :HEADS]


def keys_values(dim: int = DIM) -> torch.Tensor:
    return torch.randn(2 * KEY_HEADS, NUM_SLOTS, dim, generator=torch.Generator().manual_seed(1))


def attention(queries: torch.Tensor, blocks: list[Block], layer: torch.Tensor | None = None) -> torch.Tensor:
    layer = keys_values() if layer is None else layer
    return attend(queries, layer, plan_attention(blocks, HEADS, KEY_HEADS))


def check_against_one_row_at_a_time(blocks: list[Block]) -> None:
    layer = keys_values()
    queries = queries_of(sum(block.rows for block in blocks))
    found = attention(queries, blocks, layer)
    row = 0
    for each in blocks:
        for position in range(each.context - each.rows, each.context):
            seen = each.slots[: position + 1]
            for head in range(HEADS):
                key_head = head * KEY_HEADS // HEADS
                key, value = layer[key_head][seen], layer[KEY_HEADS + key_head][seen]
                expected = (key @ queries[row, head] / DIM**0.5).softmax(0) @ value
                own = found[row, head * DIM : (head + 1) * DIM]
                torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
            row += 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 30), st.integers(0, 6), st.booleans()), min_size=1, max_size=6
    )
)
def test_every_row_sees_its_own_context_however_blocks_are_grouped(shapes: list[tuple[int, int, int, bool]]) -> None:
    blocks = []
    for index, (rows, before, place, in_run) in enumerate(shapes):
        start = (index * 7 + place) % 9 * 60
        blocks.append(block(rows, rows + before, start) if in_run else scattered(rows, rows + before, index))
    check_against_one_row_at_a_time(blocks)


@pytest.mark.parametrize("dim", [4, 24, 64, 128])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("context", [5, 63, 64, 65, 200])
def test_heads_of_any_size_and_contexts_around_a_block_agree_with_torch(dim: int, rows: int, context: int) -> None:
    queries = torch.randn(rows, HEADS, dim, generator=torch.Generator().manual_seed(3))
    layer = keys_values(dim)
    found = attention(queries, [block(rows, context, 17)], layer).view(rows, HEADS, dim)
    keys, values = layer[:, 17 : 17 + context].repeat_interleave(HEADS // KEY_HEADS, dim=0).chunk(2)
    mask = torch.ones(rows, context, dtype=torch.bool).tril(context - rows)
    expected = scaled_dot_product_attention(queries.transpose(0, 1), keys, values, attn_mask=mask).transpose(0, 1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_scores_of_any_height_neither_overflow_nor_vanish() -> None:
    """A context whose scores differ by hundreds gives the value of the highest; of equal ones the mean."""
    queries = torch.zeros(1, HEADS, DIM)
    queries[..., 0] = 1.0
    layer = keys_values()
    layer[:KEY_HEADS, :200, 0] = torch.linspace(-3000, 3000, 200) * DIM**0.5
    found = attention(queries, [block(1, 200, 0)], layer).view(HEADS, DIM)
    torch.testing.assert_close(found, layer[KEY_HEADS:, 199].repeat_interleave(HEADS // KEY_HEADS, dim=0))
    layer[:KEY_HEADS, :200, 0] = -2000.0
    found = attention(queries, [block(1, 200, 0)], layer).view(HEADS, DIM)
    expected = layer[KEY_HEADS:, :200].mean(dim=1).repeat_interleave(HEADS // KEY_HEADS, dim=0)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 70)), min_size=1, max_size=6), st.integers(1, 3))
def test_what_a_row_gives_does_not_depend_on_the_rest_of_the_batch(shapes: list[tuple[int, int]], threads: int) -> None:
    """Bit for bit: alone, beside others, with fewer rows of its own request, on any number of threads."""
    blocks = [block(rows, rows + before, 95 * index) for index, (rows, before) in enumerate(shapes)]
    queries = queries_of(sum(block.rows for block in blocks))
    together = attention(queries, blocks)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first = 0
        for each in blocks:
            own = slice(first, first + each.rows)
            assert torch.equal(attention(queries[own], [each]), together[own])
            shorter = Block(1, each.context - each.rows + 1, each.slots, each.run_start)
            assert torch.equal(attention(queries[first : first + 1], [shorter]), together[first : first + 1])
            first += each.rows
    finally:
        torch.set_num_threads(before)


@given(
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 500)), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_every_row_of_every_head_is_computed_once_and_no_thread_has_much_more_than_its_share(
    shapes: list[tuple[int, int]], key_heads: int, threads: int
) -> None:
    rows, before = np.array(shapes).T
    first_row, start = np.cumsum(rows) - rows, 1000 * np.arange(len(rows))
    schedule = RowSchedule(first_row, rows, before + rows, start, num_key_heads=key_heads, num_threads=threads)
    computed = [
        (int(head), int(first) + at, int(context) - int(count) + at + 1, int(begin))
        for head, first, count, context, begin in schedule.items
        for at in range(count)
    ]
    expected = [
        (head, int(first_row[index]) + at, int(before[index]) + at + 1, int(start[index]))
        for index in range(len(rows))
        for at in range(rows[index])
        for head in range(key_heads)
    ]
    assert sorted(computed) == sorted(expected)
    assert schedule.bounds[0] == 0
    assert schedule.bounds[-1] == len(schedule.items)
    assert (np.diff(schedule.bounds) >= 0).all()
    work = schedule.items[:, 3] * (schedule.items[:, 2] + 2.5)
    shares = [work[a:b].sum() for a, b in pairwise(schedule.bounds)]
    assert max(shares) <= work.sum() / schedule.num_threads + work.max() + 1e-6


def test_prompts_and_scattered_requests_have_calls_of_their_own_and_decode_rows_share_one() -> None:
    blocks = [block(1, 50, 0), block(17, 50, 100), scattered(2, 40, 0), block(16, 90, 300)]
    plan = plan_attention(blocks, HEADS, KEY_HEADS)
    assert [(call.first_row, call.rows, call.gather is None) for call in plan.calls] == [(1, 17, True), (18, 2, False)]
    assert plan.schedule is not None
    assert set(plan.schedule.items[:, 4].tolist()) == {0, 300}
    check_against_one_row_at_a_time(blocks)


def test_no_call_reads_past_the_end_of_the_cache() -> None:
    check_against_one_row_at_a_time([block(2, 100, NUM_SLOTS - 100), block(40, 80, NUM_SLOTS - 180)])


def test_a_single_full_row_needs_no_mask() -> None:
    (call,) = plan_attention([scattered(1, 50, 0)], HEADS, KEY_HEADS).calls
    assert call.mask is None


def test_where_nothing_can_be_kept_the_kernel_is_compiled_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = numba.njit

    def nowhere(*arguments: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiler(*arguments, **options)

    monkeypatch.setattr(numba, "njit", nowhere)
    kernel: Any = row_kernel.__wrapped__(4)
    assert len(kernel.signatures) == 1
    assert kernel.stats.cache_path is None
