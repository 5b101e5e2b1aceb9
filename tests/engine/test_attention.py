import errno
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from lightspec_lightllm.cpu.row_attention import RowSchedule, row_kernel
from lightspec_lightllm.engine.attention import AttentionPlan, Block, attend, plan_attention
from lightspec_lightllm.errors import ModelError

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
    return attended(queries, layer, plan_attention(blocks, HEADS, KEY_HEADS))


def attended(queries: torch.Tensor, layer: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """[rows, heads * dim]; what is not written stays no number."""
    mixed = torch.full(queries.shape, math.nan)
    attend(queries.numpy(), layer.numpy(), mixed.numpy(), plan)
    return mixed.flatten(1)


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
    schedule.advance()
    later = RowSchedule(first_row, rows, before + rows + 1, start, num_key_heads=key_heads, num_threads=threads)
    np.testing.assert_array_equal(schedule.items, later.items)


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


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("key_heads", "per_key"), [(3, 1), (2, 3), (1, 8)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_request_gives_the_same_bits_alone_in_a_batch_and_at_another_slot(
    dim: int, key_heads: int, per_key: int, threads: int
) -> None:
    """With contexts of many blocks, heads of usual sizes and as many heads per key head as models have."""
    shapes = [(1, 700), (5, 1337), (16, 64), (2, 65), (12, 300)]
    starts = np.cumsum([0] + [context for _, context in shapes]).tolist()
    generator = torch.Generator().manual_seed(5)
    layer = torch.randn(2 * key_heads, starts[-1] + 100, dim, generator=generator)
    moved = layer.roll(37, dims=1)
    num_rows, heads = sum(rows for rows, _ in shapes), key_heads * per_key
    queries = torch.randn(num_rows, heads + 2 * key_heads, dim, generator=generator)[:, :heads]

    def found(rows: torch.Tensor, blocks: list[Block], layer: torch.Tensor) -> torch.Tensor:
        return attended(rows, layer, plan_attention(blocks, heads, key_heads))

    blocks = [block(rows, context, start) for (rows, context), start in zip(shapes, starts, strict=False)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = found(queries, blocks, layer)
        first = 0
        for each, start in zip(blocks, starts, strict=False):
            own = slice(first, first + each.rows)
            assert torch.equal(found(queries[own], [each], layer), together[own])
            assert torch.equal(found(queries[own], [block(each.rows, each.context, start + 37)], moved), together[own])
            for row in range(each.rows):
                one = block(1, each.context - each.rows + row + 1, start)
                assert torch.equal(
                    found(queries[first + row : first + row + 1], [one], layer)[0], together[first + row]
                )
            first += each.rows
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("position", [0, 63, 130, 197])
@pytest.mark.parametrize("dim", [8, 64])
def test_rows_that_see_a_key_or_value_that_is_no_number_show_it_and_others_do_not(
    number: float, part: str, position: int, dim: int
) -> None:
    queries = torch.randn(4, HEADS, dim, generator=torch.Generator().manual_seed(3))
    queries[:, :, 3] = queries[:, :, 3].abs()
    layer = keys_values(dim)
    blocks = [block(3, 199, 10), block(1, 199, 300)]
    before = attention(queries, blocks, layer).view(4, HEADS, dim)
    layer[KEY_HEADS if part == "value" else 0, 10 + position, 3] = number
    after = attention(queries, blocks, layer).view(4, HEADS, dim)
    sees = torch.zeros(4, HEADS, dtype=torch.bool)
    sees[max(position - 196, 0) : 3, : HEADS // KEY_HEADS] = True
    assert not after[sees].isfinite().all(dim=1).any()
    assert torch.equal(after[~sees], before[~sees])


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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which numba has kept kernels for heads of 4 and of 8 numbers."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(folder))
        for dim in (4, 8):
            row_kernel.__wrapped__(dim)
    return folder


@pytest.fixture
def files(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them that numba uses; what is compiled for this process alone is the kernel of 4 numbers it has."""
    folder = shutil.copytree(kept, tmp_path / "kept")
    compiler, good = numba.njit, row_kernel(4)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))

    def njit(*arguments: Any, **options: Any) -> Any:
        return compiler(*arguments, **options) if options["cache"] else lambda _: good

    monkeypatch.setattr(numba, "njit", njit)
    (only,) = folder.iterdir()
    return only


def file_of(files: Path, dim: int, ending: str) -> Path:
    (found,) = files.glob(f"row_attention.attend_{dim}-*.{ending}")
    return found


def test_a_kept_kernel_is_used(files: Path) -> None:
    kernel: Any = row_kernel.__wrapped__(4)
    assert kernel is not row_kernel(4)
    assert sum(kernel.stats.cache_hits.values()) == 1


@pytest.mark.parametrize(("dim", "other"), [(4, 8), (8, 4)])
def test_a_kept_kernel_for_heads_of_another_size_is_not_used(files: Path, dim: int, other: int) -> None:
    shutil.copy(file_of(files, other, "nbc"), file_of(files, dim, "nbc"))
    if dim == 4:
        assert row_kernel.__wrapped__(4) is row_kernel(4)
    else:  # what this process compiles is wrong as well
        with pytest.raises(ModelError, match=r"heads of 8 floats computes wrong numbers .* install another version"):
            row_kernel.__wrapped__(8)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 30])
def test_damaged_files_of_a_kept_kernel_are_not_used(files: Path, ending: str, size: int) -> None:
    damaged = file_of(files, 4, ending)
    damaged.write_bytes(damaged.read_bytes()[:size])
    assert row_kernel.__wrapped__(4) is row_kernel(4)


@pytest.mark.parametrize("step", ["_load_index", "_save_data"])
def test_a_full_or_failing_disk_does_not_stop_the_kernel(
    files: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "_save_data":
        file_of(files, 4, "nbc").unlink()
    monkeypatch.setattr(f"numba.core.caching.IndexDataCacheFile.{step}", fail)
    assert row_kernel.__wrapped__(4) is row_kernel(4)


def test_numba_that_does_not_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(ModelError, match=r"NUMBA_DISABLE_JIT .* unset the variable"):
        row_kernel.__wrapped__(4)
