import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.engine.slots import SlotPool
from lightspec_lightllm.errors import SlotError


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), num_slots=st.sampled_from([20, 300, 1000]))
def test_any_order_of_operations_conserves_slots(seed: int, num_slots: int) -> None:
    rng = np.random.default_rng(seed)
    pool = SlotPool(num_slots, max_requests=5, max_positions=400)
    rows: list[int] = []
    for _ in range(60):
        action = rng.integers(4)
        if action == 0 and len(rows) < 5:
            rows.append(pool.open(int(rng.integers(1, 400))))
        elif action == 1 and rows:
            row, free = int(rng.choice(rows)), pool.num_free
            length = pool.length(row) + int(rng.integers(1, 60))
            if length - pool.length(row) > free or length > 400:
                with pytest.raises(SlotError, match="slots wanted"):
                    pool.extend(row, length)
            else:
                pool.extend(row, length)
                assert pool.length(row) == length
        elif action == 2 and rows:
            row = int(rng.choice(rows))
            pool.trim(row, int(rng.integers(0, pool.length(row) + 1)))
        elif rows:
            rows.remove(row := int(rng.choice(rows)))
            pool.close(row)
        pool.check()
        assert pool.num_free == num_slots - sum(pool.length(row) for row in rows)
        assert pool.open_rows() == sorted(rows)


def test_a_request_inside_its_claim_has_one_run_of_slots() -> None:
    pool = SlotPool(2048, max_requests=4, max_positions=600)
    first, second = pool.open(300), pool.open(200)
    for length in (1, 40, 41, 200):
        pool.extend(first, length)
        pool.extend(second, length)
    assert (pool.run_start(first, 200), pool.run_start(second, 200)) == (0, 512)
    np.testing.assert_array_equal(pool.slots(second), np.arange(512, 712))
    np.testing.assert_array_equal(pool.table[second, :200].numpy(), np.arange(512, 712))


def test_claims_are_tight_once_half_of_the_pool_is_claimed() -> None:
    pool = SlotPool(2048, max_requests=8, max_positions=600)
    rows = [pool.open(300) for _ in range(5)]
    for row in rows:
        pool.extend(row, 300)
    assert [pool.run_start(row, 300) for row in rows] == [0, 512, 1024, 1324, 1624]


def test_claims_give_way_when_the_pool_is_short() -> None:
    pool = SlotPool(100, max_requests=4, max_positions=100)
    first, second = pool.open(100), pool.open(60)
    pool.extend(first, 10)
    pool.extend(second, 60)
    assert pool.run_start(second, 60) is None
    pool.extend(first, 40)
    assert pool.num_free == 0
    pool.check()
    pool.close(second)
    pool.trim(first, 10)
    pool.extend(first, 90)
    assert pool.run_start(first, 90) == 0


def test_freeing_twice_is_an_error() -> None:
    pool = SlotPool(64, max_requests=2, max_positions=64)
    row = pool.open(10)
    pool.extend(row, 8)
    pool.close(row)
    with pytest.raises(SlotError, match="not open"):
        pool.close(row)
    with pytest.raises(SlotError, match="not open"):
        pool.extend(row, 3)


def test_a_lost_or_doubly_owned_slot_is_found() -> None:
    pool = SlotPool(64, max_requests=2, max_positions=64)
    first, second = pool.open(10), pool.open(10)
    pool.extend(first, 8)
    pool.extend(second, 8)
    pool.num_free += 1
    with pytest.raises(SlotError, match="counted free"):
        pool.check()
    pool.num_free -= 1
    pool._owner[40] = first
    with pytest.raises(SlotError, match="1 slots have an owner"):
        pool.check()
    pool._owner[40] = -1
    pool.check()
    pool._table[second, 0] = pool._table[first, 0]
    with pytest.raises(SlotError, match="owned twice"):
        pool.check()


def test_more_requests_than_rows_are_refused() -> None:
    pool = SlotPool(64, max_requests=1, max_positions=64)
    pool.open(4)
    with pytest.raises(SlotError, match="rows of the slot table"):
        pool.open(4)
