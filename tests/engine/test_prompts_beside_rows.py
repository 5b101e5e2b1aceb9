"""Prompts are read in the forward that verifies, and change nothing but the time."""

import numpy as np
import pytest
import torch

from lightspec_lightllm.engine import Engine, SamplingParams, Sequence
from lightspec_lightllm.errors import SlotError
from tests.engine.driving import decode_alone, no_drafts, run_plain, step
from tests.engine.tiny_llama import tiny_engine

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def running(engine: Engine, *prompts: list[int]) -> list[Sequence]:
    """Requests that have two tokens."""
    seqs = [engine.submit(prompt, PARAMS) for prompt in prompts]
    while not all(sequence.num_generated == 2 for sequence in seqs):
        step(engine, 2, no_drafts, lambda _: 1)
    return seqs


def one_row_each(engine: Engine, seqs: list[Sequence]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[sequence.tokens[-1]] for sequence in seqs]), np.ones(len(seqs), dtype=np.int64)


def test_a_prompt_is_read_in_the_forward_of_those_that_run() -> None:
    engine = tiny_engine()
    (old,) = running(engine, [5, 6, 7])
    new = engine.submit([9, 10, 11, 12], PARAMS)
    assert engine.schedule(2) == [old]
    engine.check()
    assert (new.status, new.num_generated, new.num_reserved) == ("prefilling", 0, 4)
    forward = engine.forward([old], *one_row_each(engine, [old]))
    assert (forward.logits.shape[0], forward.prompt_tokens, forward.joined) == (1, 4, (new,))
    assert (new.status, new.num_generated, new.num_reserved) == ("running", 1, 0)
    engine.commit([old], engine.sample(forward, [old], np.ones(1, dtype=np.int64))[:, None], np.array([1]))
    engine.check()
    assert engine.schedule(2) == [old, new]
    forward = engine.forward([old, new], *one_row_each(engine, [old, new]))
    assert (forward.prompt_tokens, forward.joined) == (0, ())


@pytest.mark.parametrize("prefill_chunk", [3, 256])
def test_neither_the_rows_nor_the_prompt_notice_each_other(prefill_chunk: int) -> None:
    def serve(*, together: bool) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
        engine = tiny_engine(prefill_chunk=prefill_chunk)
        engine.model.capture_layers = (0, 2)
        (old,) = running(engine, [5, 6, 7])
        heard: list[torch.Tensor] = []
        engine.prefill_listener = lambda _sequence, _start, hidden: heard.append(hidden.clone())
        new = engine.submit([9, 10, 11, 12, 13, 14, 15, 16], PARAMS)
        if not together:
            while len(engine.schedule(4)) < 2:
                pass
        engine.schedule(4)
        tokens = np.array([[old.tokens[-1], 20, 21]])
        forward = engine.forward([old], tokens, np.array([3]))
        assert forward.hidden is not None
        assert forward.hidden.shape == (3, 2 * engine.model.config.hidden_size)
        while len(engine.running) < 2:
            engine.schedule(4)
        return torch.cat((forward.logits, forward.hidden), dim=1), heard, new.tokens

    rows, heard, text = serve(together=True)
    own_rows, own_heard, own_text = serve(together=False)
    torch.testing.assert_close(rows, own_rows, atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(torch.cat(heard), torch.cat(own_heard), atol=2e-4, rtol=1e-5)
    assert text == own_text


def test_a_chunk_that_no_forward_took_is_computed_by_the_next_schedule() -> None:
    engine = tiny_engine(prefill_chunk=3)
    (old,) = running(engine, [5, 6])
    new = engine.submit([9, 10, 11, 12], PARAMS)
    assert engine.schedule(2) == [old]
    assert engine.schedule(2) == [old]
    assert new.num_computed == 3
    engine.check()
    assert engine.schedule(2) == [old]
    assert new.num_computed == 3
    forward = engine.forward([old], *one_row_each(engine, [old]))
    assert (forward.prompt_tokens, forward.joined) == (4, (new,)), "those that schedule() computed count too"


def test_a_request_that_ends_with_its_first_token_joins_and_is_gone() -> None:
    engine = tiny_engine()
    (old,) = running(engine, [5, 6])
    short = engine.submit([9, 10, 11], SamplingParams(max_tokens=1, ignore_eos=True))
    seqs = engine.schedule(2)
    forward = engine.forward(seqs, *one_row_each(engine, seqs))
    assert forward.joined == (short,)
    assert (short.status, short.finish_reason, short.slot_row) == ("finished", "length", -1)
    engine.commit(seqs, engine.sample(forward, seqs, np.ones(1, dtype=np.int64))[:, None], np.array([1]))
    assert engine.take_finished() == [short]
    run_plain(engine)
    assert engine.slots.num_free == engine.slots.num_slots
    assert old.finish_reason == "length"


def test_a_prompt_that_is_cancelled_between_schedule_and_forward_ends_at_the_next_schedule() -> None:
    engine = tiny_engine()
    (old,) = running(engine, [5, 6])
    gone = engine.submit([9, 10, 11], PARAMS)
    seqs = engine.schedule(2)
    engine.cancel(gone.request_id)
    engine.forward(seqs, *one_row_each(engine, seqs))
    engine.check()
    assert engine.schedule(2) == [old]
    assert gone.finish_reason == "cancelled"
    engine.check()
    run_plain(engine)
    assert engine.slots.num_free == engine.slots.num_slots


def test_a_sequence_whose_prompt_is_being_read_brings_no_rows() -> None:
    engine = tiny_engine()
    (old,) = running(engine, [5, 6])
    new = engine.submit([9, 10, 11], PARAMS)
    seqs = engine.schedule(2)
    with pytest.raises(SlotError, match=f"request {new.request_id} is prefilling; those that schedule"):
        engine.forward([*seqs, new], *one_row_each(engine, [old, new]))
    run_plain(engine)
    assert new.tokens == decode_alone(tiny_engine(), [9, 10, 11], PARAMS, new.request_id).tokens


def test_what_was_read_while_nobody_ran_is_not_another_requests() -> None:
    engine = tiny_engine()
    engine.submit([5, 6, 7], SamplingParams(max_tokens=1, ignore_eos=True))
    assert engine.schedule(2) == []
    assert engine.schedule(2) == []
    sequence = engine.submit([9, 10], PARAMS)
    seqs = engine.schedule(2)
    assert seqs == [sequence]
    assert engine.forward(seqs, *one_row_each(engine, seqs)).prompt_tokens == 2


def test_a_cancelled_prompt_whose_chunk_no_forward_took_gives_its_slots_back() -> None:
    engine = tiny_engine()
    (old,) = running(engine, [5, 6])
    gone = engine.submit([9, 10, 11], PARAMS)
    engine.schedule(2)
    engine.cancel(gone.request_id)
    assert engine.schedule(2) == [old]
    engine.check()
    assert engine.slots.num_free == engine.slots.num_slots - old.num_computed - 2
    forward = engine.forward([old], *one_row_each(engine, [old]))
    assert (forward.prompt_tokens, forward.joined) == (0, ())


def test_a_prompt_gives_way_to_rows_of_older_requests_and_is_read_later() -> None:
    prompts = [[5, 9, 20], [7, 8, 9], [10 + place % 40 for place in range(70)]]
    params = SamplingParams(max_tokens=120, ignore_eos=True)
    expected = [decode_alone(tiny_engine(), prompt, params).tokens for prompt in prompts]
    engine = tiny_engine(num_slots=222, max_rows=16, prefill_chunk=1)
    seqs = [engine.submit(prompt, params) for prompt in prompts]
    steps = paused = 0
    while engine.has_work:
        step(engine, 16, no_drafts, lambda _: 1)
        steps += 1
        paused += seqs[2].status == "paused"
    assert 0 < paused < steps
    assert [sequence.tokens for sequence in seqs] == expected
    assert engine.slots.num_free == engine.slots.num_slots
