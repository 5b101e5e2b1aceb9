import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.engine.attention import Block, attend, plan_attention

NUM_SLOTS, KEY_HEADS, HEADS, DIM = 600, 2, 6, 8


def block(rows: int, context: int, start: int) -> Block:
    return Block(rows, context, np.arange(start, start + context), start)


def scattered(rows: int, context: int, seed: int) -> Block:
    return Block(rows, context, np.random.default_rng(seed).permutation(NUM_SLOTS)[:context].astype(np.int64), None)


def sizes(blocks: list[Block]) -> list[int]:
    return sorted(group.count for group in plan_attention(blocks, HEADS // KEY_HEADS, NUM_SLOTS).groups)


def check_against_one_row_at_a_time(blocks: list[Block]) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, KEY_HEADS, NUM_SLOTS, DIM, generator=generator)
    num_rows = sum(block.rows for block in blocks)
    queries = torch.randn(num_rows, HEADS, DIM, generator=generator)
    plan = plan_attention(blocks, HEADS // KEY_HEADS, NUM_SLOTS)
    laid_out = queries if plan.order is None else queries[plan.order]
    found = attend(laid_out, keys, values, plan)
    if plan.inverse is not None:
        found = found[plan.inverse]
    row = 0
    for each in blocks:
        for position in range(each.context - each.rows, each.context):
            seen = each.slots[: position + 1]
            for head in range(HEADS):
                key, value = keys[head * KEY_HEADS // HEADS][seen], values[head * KEY_HEADS // HEADS][seen]
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


def test_requests_at_equal_distances_share_one_call() -> None:
    blocks = [block(1, 50 + index, start) for index, start in enumerate((200, 0, 300, 100))]
    assert sizes(blocks) == [4]
    check_against_one_row_at_a_time(blocks)


def test_two_requests_share_a_call_wherever_they_lie() -> None:
    assert sizes([block(1, 50, 7), block(1, 50, 301)]) == [2]


@pytest.mark.parametrize(
    "blocks",
    [
        [block(1, 50, 0), block(1, 50, 100), block(1, 50, 350)],
        [block(1, 20, 0), block(1, 20, 100), block(1, 200, 200)],
        [block(1, 50, 0), block(1, 50, 100), scattered(1, 50, 0)],
    ],
    ids=["distance", "context", "scattered"],
)
def test_a_request_that_does_not_fit_in_gets_its_own_call(blocks: list[Block]) -> None:
    assert sizes(blocks) == [1, 2]
    check_against_one_row_at_a_time(blocks)


def test_rows_that_few_requests_have_follow_the_call_that_serves_all_of_them() -> None:
    blocks = [block(1, 50, 0), block(2, 50, 100), block(1, 50, 200), block(16, 50, 300)]
    groups = plan_attention(blocks, HEADS // KEY_HEADS, NUM_SLOTS).groups
    assert [(group.count, group.rows) for group in groups] == [(4, 2), (1, 14)]
    check_against_one_row_at_a_time(blocks)


def test_a_row_or_two_more_than_others_have_are_not_worth_a_call() -> None:
    blocks = [block(rows, 50, 60 * index) for index, rows in enumerate((1, 2, 1, 3))]
    assert sizes(blocks) == [4]
    check_against_one_row_at_a_time(blocks)


def test_no_call_reads_past_the_end_of_the_cache() -> None:
    blocks = [block(1, 60, 400), block(1, 50, NUM_SLOTS - 50)]
    assert sizes(blocks) == [1, 1]
    check_against_one_row_at_a_time(blocks)
    fitting = [block(1, 50, 400), block(1, 60, NUM_SLOTS - 60)]
    assert sizes(fitting) == [2]
    check_against_one_row_at_a_time(fitting)


def test_a_single_full_row_needs_no_mask() -> None:
    (group,) = plan_attention([block(1, 50, 0)], 3, NUM_SLOTS).groups
    assert group.mask is None
