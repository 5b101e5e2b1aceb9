from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightspec_lightllm.engine import SamplingParams, Sequence
from lightspec_lightllm.errors import RequestError, SlotError
from tests.engine.driving import Case, decode_alone, no_drafts, run_plain, run_wild, step
from tests.engine.tiny_llama import tiny_engine

REFERENCE = tiny_engine()


def random_case(rng: np.random.Generator, request_id: int, sampled: bool) -> Case:
    prompt = rng.integers(1, 58, size=int(rng.integers(1, 40))).tolist()
    stops = tuple(rng.choice(["a", "the", "q", "é", " a", "z."], size=2, replace=False)) if rng.random() < 0.3 else ()
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 40)),
        temperature=float(rng.uniform(0.5, 3.0)) if sampled else 0.0,
        top_k=int(rng.choice([0, 5, 20])),
        top_p=float(rng.choice([1.0, 0.9])),
        seed=int(rng.integers(1000)) if rng.random() < 0.5 else None,
        stop=tuple(str(stop) for stop in stops),
        ignore_eos=bool(rng.random() < 0.3),
    )
    case = Case(prompt, params, request_id, decode_alone(REFERENCE, prompt, params, request_id))
    if rng.random() < 0.2:
        case.cancel_after = int(rng.integers(0, 20))
    return case


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    sampled=st.booleans(),
    num_slots=st.sampled_from([96, 130, 200, 1024]),
    prefill_chunk=st.sampled_from([3, 16, 256]),
    max_requests=st.sampled_from([1, 3, 8]),
)
def test_wild_rounds_give_the_text_of_plain_decoding_and_lose_no_slot(
    seed: int, sampled: bool, num_slots: int, prefill_chunk: int, max_requests: int
) -> None:
    rng = np.random.default_rng(seed)
    cases = [random_case(rng, request_id, sampled) for request_id in range(int(rng.integers(1, 8)))]
    engine = tiny_engine(num_slots=num_slots, prefill_chunk=prefill_chunk, max_requests=max_requests)
    released: list[int] = []
    engine.release_listener = released.append
    run_wild(engine, cases, rng, max_rows=9)
    assert engine.slots.num_free == num_slots
    assert {sequence.request_id for sequence in engine.take_finished()} == {case.request_id for case in cases}
    for case in cases:
        assert case.sequence is not None
        assert case.expected is not None
        if case.sequence.finish_reason == "cancelled":
            assert case.expected.tokens[: len(case.sequence.tokens)] == case.sequence.tokens
        else:
            assert case.sequence.tokens == case.expected.tokens
            assert case.sequence.text == case.expected.text
            assert case.sequence.finish_reason == case.expected.finish_reason
            assert case.request_id in released


def test_a_short_pool_pauses_the_youngest_and_resumes_it_with_the_same_text() -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = [[5 + index, 9, 20, 11] for index in range(3)]
    expected = [decode_alone(REFERENCE, prompt, params).tokens for prompt in prompts]
    engine = tiny_engine(num_slots=90, max_rows=4)
    seqs = [engine.submit(prompt, params) for prompt in prompts]
    seen: set[str] = set()
    while engine.has_work:
        running = step(engine, 4, no_drafts, lambda _: 4)
        assert running, "the oldest always runs"
        seen |= {f"{sequence.request_id} {sequence.status}" for sequence in seqs}
    assert "0 paused" not in seen
    assert "2 paused" in seen or "1 paused" in seen
    assert [sequence.tokens for sequence in seqs] == expected


def test_a_cancel_takes_effect_at_the_next_schedule_and_frees_the_slots_once() -> None:
    engine = tiny_engine()
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    kept, gone = engine.submit([5, 6], params), engine.submit([7, 8], params)
    step(engine, 3, no_drafts, lambda _: 2)
    engine.cancel(gone.request_id)
    assert gone.status == "running"
    engine.cancel(gone.request_id)
    assert engine.schedule(2) == [kept]
    assert (gone.status, gone.finish_reason) == ("finished", "cancelled")
    engine.check()
    engine.cancel(gone.request_id)
    run_plain(engine)
    assert engine.slots.num_free == engine.slots.num_slots


def test_a_waiting_request_can_be_cancelled() -> None:
    engine = tiny_engine()
    sequence = engine.submit([5, 6], SamplingParams())
    engine.cancel(sequence.request_id)
    assert engine.schedule(1) == []
    assert sequence.finish_reason == "cancelled"
    assert not engine.has_work


@pytest.mark.parametrize("prompt_length", [3, 4, 5, 9])
@pytest.mark.parametrize("prefill_chunk", [1, 4])
def test_a_prompt_in_chunks_runs_once_its_first_token_is_sampled(prompt_length: int, prefill_chunk: int) -> None:
    prompt = list(range(5, 5 + prompt_length))
    expected = decode_alone(REFERENCE, prompt, SamplingParams(max_tokens=3, ignore_eos=True)).tokens
    engine = tiny_engine(prefill_chunk=prefill_chunk)
    sequence = engine.submit(prompt, SamplingParams(max_tokens=3, ignore_eos=True))
    steps = 1
    while engine.schedule(2) == []:
        assert (sequence.status, sequence.num_generated) == ("prefilling", 0)
        engine.check()
        steps += 1
    assert steps == -(-prompt_length // prefill_chunk)
    assert (sequence.status, sequence.num_generated, sequence.num_computed) == ("running", 1, prompt_length)
    run_plain(engine)
    assert sequence.tokens == expected


def commit_drafts(text: str, params: SamplingParams) -> tuple[Sequence, int]:
    """Commit the text's tokens in one round after a first token, as if every draft had been right."""
    engine = tiny_engine()
    sequence = engine.submit([5, 6], params)
    seqs = engine.schedule(16)
    drafts = engine.tokenizer.encode(text)
    tokens = np.array([[sequence.tokens[-1], *drafts]])
    engine.forward(seqs, tokens, np.array([len(drafts) + 1]))
    kept = engine.commit(seqs, np.array([drafts]), np.array([len(drafts)]))
    engine.check()
    return sequence, int(kept[0])


def test_a_stop_string_inside_a_draft_ends_the_request_there() -> None:
    sequence, kept = commit_drafts("xyz the end", SamplingParams(max_tokens=30, stop=("he",), ignore_eos=True))
    assert (sequence.status, sequence.finish_reason) == ("finished", "stop")
    assert sequence.text.endswith("xyz t")
    assert kept == len(["x", "y", "z", " the"])
    assert sequence.num_generated == 1 + kept


def test_of_two_stop_strings_the_one_that_begins_first_cuts_the_text() -> None:
    sequence, _ = commit_drafts("abthe", SamplingParams(max_tokens=30, stop=("he", "bth"), ignore_eos=True))
    assert sequence.text.endswith("a")


def test_end_of_sequence_inside_a_draft_ends_the_request_and_leaves_no_text() -> None:
    sequence, kept = commit_drafts("xy<|eos|>zz", SamplingParams(max_tokens=30))
    assert (sequence.finish_reason, kept) == ("stop", 3)
    assert sequence.text.endswith("xy")


def test_max_tokens_inside_a_draft_ends_the_request() -> None:
    sequence, kept = commit_drafts("xyzxyz", SamplingParams(max_tokens=4))
    assert (sequence.finish_reason, kept, sequence.num_generated) == ("length", 3, 4)


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_is_decided() -> None:
    sequence, _ = commit_drafts("xy.an", SamplingParams(max_tokens=30, stop=("and",), ignore_eos=True))
    assert sequence.text.endswith("xy.")
    sequence.finish("length")
    assert sequence.text.endswith("xy.an")


def test_committing_twice_or_more_than_was_forwarded_is_refused() -> None:
    engine = tiny_engine()
    engine.submit([5, 6], SamplingParams(max_tokens=30, ignore_eos=True))
    seqs = engine.schedule(4)
    tokens, one = np.full((1, 4), 9), np.array([1])
    with pytest.raises(SlotError, match="commits 1 tokens of 0"):
        engine.commit(seqs, tokens, one)
    with pytest.raises(SlotError, match="brings 5 rows, 4 are reserved"):
        engine.forward(seqs, np.full((1, 5), 9), np.array([5]))
    engine.forward(seqs, tokens, np.array([2]))
    with pytest.raises(SlotError, match="commits 3 tokens of 2"):
        engine.commit(seqs, tokens, np.array([3]))
    engine.commit(seqs, tokens, one)
    with pytest.raises(SlotError, match="no reserved rows"):
        engine.commit(seqs, tokens, one)
    engine.check()


def test_scheduling_again_without_a_commit_keeps_the_books_right() -> None:
    engine = tiny_engine()
    engine.submit([5, 6], SamplingParams(max_tokens=30))
    for rows in (4, 9, 2):
        (sequence,) = engine.schedule(rows)
        engine.check()
        assert engine.slot_table(sequence).shape == (sequence.num_computed + rows,)


@pytest.mark.parametrize(
    ("submit", "message"),
    [
        (lambda engine: engine.submit([], SamplingParams()), "empty"),
        (lambda engine: engine.submit([64], SamplingParams()), r"0\.\.63"),
        (lambda engine: engine.submit([1] * 250, SamplingParams(max_tokens=7)), "exceeds the context of 256"),
        (lambda engine: engine.submit([1] * 80, SamplingParams(max_tokens=41)), "exceeds the pool of 128"),
        (lambda engine: engine.schedule(17), "max_rows"),
        (lambda engine: engine.schedule(0), "max_rows"),
        (lambda engine: [engine.submit([1], SamplingParams(), 5) for _ in range(2)], "id 5 is in use"),
    ],
)
def test_requests_that_can_never_be_served_are_refused(submit: Callable[[object], object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        submit(tiny_engine(num_slots=128 if "pool" in message else 1024))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("stop", ("",)),
        ("stop", "ab"),
    ],
)
def test_impossible_sampling_parameters_are_refused(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]  # the wrong type is the point


def test_a_timing_forward_needs_an_idle_engine_and_leaves_no_slot_behind() -> None:
    engine = tiny_engine()
    engine.probe_forward([4, 1, 7], 50)
    assert engine.slots.num_free == engine.slots.num_slots
    with pytest.raises(RequestError, match="do not fit"):
        engine.probe_forward([1] * 30, 200)
    engine.submit([5], SamplingParams())
    with pytest.raises(RequestError, match="no work"):
        engine.probe_forward([1], 10)
