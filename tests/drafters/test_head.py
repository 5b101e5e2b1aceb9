"""The drafting head against the module it was trained as, and its state against a head that never skipped."""

import numpy as np
import pytest
import torch

from lightspec_lightllm.cpu.linear import LinearWeights
from lightspec_lightllm.drafters.base import Proposals
from lightspec_lightllm.drafters.head import HeadDrafter
from lightspec_lightllm.errors import FeedbackError, ModelError
from tests.drafters.requests import SHAPE, FakeRequest, TinyHead, streams_for, tiny_head

STEPS = 5


@pytest.fixture(scope="module")
def head() -> TinyHead:
    return tiny_head()


def drafter(head: TinyHead) -> HeadDrafter:
    return HeadDrafter(head.embedding, head.weights, weight_kind="float32")


def fed(head: TinyHead, *requests: FakeRequest) -> HeadDrafter:
    """A head that knows all hidden states of the requests' tokens but the last."""
    drafts = drafter(head)
    for request in requests:
        drafts.prefill(request, 0, streams_for(request, len(request.tokens) - 1))
    return drafts


def unrolled(head: TinyHead, request: FakeRequest) -> tuple[list[int], list[float]]:
    """Drafts and confidences out of the training module: unrolled once per step, on the drafts so far."""
    tokens = list(request.tokens)
    anchor = len(tokens) - 2
    streams = streams_for(request, anchor + 1)[None]
    drafts: list[int] = []
    sure: list[float] = []
    with torch.no_grad():
        for step in range(STEPS):
            embedded = head.embedding[torch.tensor([*tokens, *[0] * STEPS])][None]
            hidden = head.module.unroll(embedded, streams, torch.tensor([anchor]), 1, step + 1)[step][0, 0]
            chances = (head.module.output_norm(hidden) @ head.embedding[head.draft_vocab].T).softmax(-1)
            best = int(chances.argmax())
            drafts.append(int(head.draft_vocab[best]))
            sure.append(float(chances[best]))
            tokens.append(drafts[-1])
    return drafts, sure


def assert_same(first: Proposals, second: Proposals) -> None:
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(first.lengths, second.lengths)
    np.testing.assert_allclose(first.confidence, second.confidence, rtol=1e-4)


def test_drafting_is_the_unroll_that_was_trained(head: TinyHead) -> None:
    rng = np.random.default_rng(3)
    requests = [FakeRequest(i, rng.integers(0, 50, size).tolist()) for i, size in enumerate((9, 2, 30))]
    proposals = fed(head, *requests).propose(requests, STEPS)
    for row, request in enumerate(requests):
        drafts, sure = unrolled(head, request)
        assert proposals.tokens[row].tolist() == drafts
        np.testing.assert_allclose(proposals.confidence[row], sure, rtol=1e-4)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_weights_draft_nearly_the_same(head: TinyHead, kind: LinearWeights) -> None:
    request = FakeRequest(1, [3, 1, 4, 1, 5])
    half = HeadDrafter(head.embedding, head.weights, weight_kind=kind)
    half.prefill(request, 0, streams_for(request, 4))
    full = fed(head, request)
    np.testing.assert_allclose(half.propose([request], 1).confidence, full.propose([request], 1).confidence, rtol=0.05)


@pytest.mark.parametrize(("tiles", "kind"), [(True, "bfloat16"), (False, "float16")])
def test_weights_are_kept_as_the_processor_multiplies_them_quickest(
    head: TinyHead, monkeypatch: pytest.MonkeyPatch, tiles: bool, kind: LinearWeights
) -> None:
    monkeypatch.setattr("lightspec_lightllm.drafters.head.has_bfloat16_tiles", lambda: tiles)
    request = FakeRequest(1, [3, 1, 4, 1, 5])
    by_default, told = (
        HeadDrafter(head.embedding, head.weights),
        HeadDrafter(head.embedding, head.weights, weight_kind=kind),
    )
    for drafts in (by_default, told):
        drafts.prefill(request, 0, streams_for(request, 4))
    found, expected = by_default.propose([request], STEPS), told.propose([request], STEPS)
    np.testing.assert_array_equal(found.confidence, expected.confidence)


def test_positions_past_those_prepared_for_are_turned_alike(head: TinyHead, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FakeRequest(1, list(range(40)))
    expected = fed(head, request).propose([request], STEPS)
    monkeypatch.setattr("lightspec_lightllm.drafters.network.FIRST_POSITIONS", 3)
    assert_same(fed(head, request).propose([request], STEPS), expected)


@pytest.mark.parametrize("drafting", [(), (1,), (0, 2, 3), (0, 1, 2, 3, 4, 5)], ids=str)
def test_skipped_rounds_leave_no_trace(head: TinyHead, drafting: tuple[int, ...]) -> None:
    """Rounds verify 3 rows and accept 1, 2 or 3; whether the head drafted in between changes nothing."""
    rng = np.random.default_rng(7)
    requests = [FakeRequest(1, [1, 2, 3, 4]), FakeRequest(2, [9, 8])]
    drafts = drafter(head)
    for request in requests:
        drafts.prefill(request, 0, streams_for(request, len(request.tokens) - 1))
    for turn in range(6):
        if turn in drafting:
            drafts.propose(requests, STEPS)
        rows, accepted = np.array([3, 3]), rng.integers(1, 4, 2)
        hidden = []
        for request, kept in zip(requests, accepted, strict=True):
            known = len(request.tokens) - 1
            right = streams_for(request, known + int(kept))[known:]
            hidden.append(torch.cat([right, torch.full((3 - int(kept), right.shape[1]), 1e3)]))
            request.tokens.extend(rng.integers(0, 50, int(kept)).tolist())
        drafts.observe(requests, torch.cat(hidden), rows, accepted)
    assert_same(drafts.propose(requests, STEPS), fed(head, *requests).propose(requests, STEPS))


def test_a_backlog_that_grows_too_long_is_taken_in_unasked(head: TinyHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightspec_lightllm.drafters.head.MAX_BACKLOG", 4)
    rng = np.random.default_rng(3)
    requests = [FakeRequest(1, [1, 2, 3, 4]), FakeRequest(2, [9, 8])]
    drafts = drafter(head)
    for request in requests:
        drafts.prefill(request, 0, streams_for(request, len(request.tokens) - 1))
    for _ in range(12):
        hidden = []
        for request in requests:
            known = len(request.tokens) - 1
            hidden.append(streams_for(request, known + 2)[known:])
            request.tokens.extend(rng.integers(0, 50, 2).tolist())
        drafts.observe(requests, torch.cat(hidden), np.array([2, 2]), np.array([2, 2]))
        assert max(drafts.backlog([request]) for request in requests) <= 4 + 2
    assert_same(drafts.propose(requests, STEPS), fed(head, *requests).propose(requests, STEPS))


def test_a_rule_ends_a_chain_and_keeps_what_was_drafted(head: TinyHead) -> None:
    class AfterTwo:
        def worth_another_step(self, confidence: np.ndarray, request_ids: np.ndarray) -> bool:
            assert confidence.shape[0] == len(request_ids) == 2
            return len(confidence[0]) < 2

    requests = [FakeRequest(1, [1, 2, 3, 4]), FakeRequest(2, [9, 8])]
    whole = fed(head, *requests).propose(requests, STEPS)
    cut = fed(head, *requests).propose(requests, STEPS, AfterTwo())
    assert cut.lengths.tolist() == [2, 2]
    np.testing.assert_array_equal(cut.tokens[:, :2], whole.tokens[:, :2])
    assert (cut.tokens[:, 2:] == -1).all()


def test_prompt_chunks_are_the_same_as_one_prefill(head: TinyHead) -> None:
    request = FakeRequest(1, list(range(20)))
    chunked = drafter(head)
    streams = streams_for(request, 19)
    for start in range(0, 19, 6):
        chunked.prefill(request, start, streams[start : start + 6].numpy())
    assert_same(chunked.propose([request], STEPS), fed(head, request).propose([request], STEPS))


def test_proposing_again_without_a_round_repeats_the_proposal(head: TinyHead) -> None:
    request = FakeRequest(1, [4, 5, 6])
    drafts = fed(head, request)
    assert_same(drafts.propose([request], STEPS), drafts.propose([request], STEPS))


def test_any_part_of_the_batch_in_any_order_drafts_the_same(head: TinyHead) -> None:
    requests = [FakeRequest(i, [i, i + 1, i + 2, 7 * i % 50]) for i in range(5)]
    together = fed(head, *requests)
    whole = together.propose(requests, STEPS)
    for part in ([3, 1], [4], [4, 3, 2, 1, 0]):
        proposals = together.propose([requests[i] for i in part], STEPS)
        np.testing.assert_array_equal(proposals.tokens, whole.tokens[part])


def test_contexts_outgrow_the_first_capacity(head: TinyHead) -> None:
    long, short = FakeRequest(1, [i % 50 for i in range(400)]), FakeRequest(2, [5, 6])
    drafts = fed(head, short)
    drafts.propose([short], STEPS)
    drafts.prefill(long, 0, streams_for(long, 399))
    proposals = drafts.propose([short, long], STEPS)
    assert proposals.tokens[0].tolist() == unrolled(head, short)[0]
    assert proposals.tokens[1].tolist() == unrolled(head, long)[0]


def test_release_frees_the_state_and_keeps_the_others(head: TinyHead) -> None:
    requests = [FakeRequest(i, [i, 2 * i + 1, 3]) for i in range(3)]
    drafts = fed(head, *requests)
    before = drafts.propose(requests, STEPS)
    drafts.release(0)
    drafts.release(0)
    assert len(drafts._cache) == 2
    newcomer = FakeRequest(9, [7, 7, 8, 9])
    drafts.prefill(newcomer, 0, streams_for(newcomer, 3))
    assert_same(drafts.propose([newcomer], STEPS), fed(head, newcomer).propose([newcomer], STEPS))
    assert drafts.backlog([requests[0]]) == 0
    after = drafts.propose(requests, STEPS)
    assert after.lengths.tolist() == [0, STEPS, STEPS]
    np.testing.assert_array_equal(after.tokens[1:], before.tokens[1:])
    assert (after.tokens[0] == -1).all()


def test_a_released_request_may_come_back_with_its_whole_text(head: TinyHead) -> None:
    request = FakeRequest(1, [1, 2, 3])
    drafts = fed(head, request)
    drafts.propose([request], STEPS)
    drafts.release(1)
    request.tokens.extend([4, 5])
    drafts.prefill(request, 0, streams_for(request, 4))
    assert_same(drafts.propose([request], STEPS), fed(head, request).propose([request], STEPS))


def test_the_backlog_counts_rows_to_catch_up(head: TinyHead) -> None:
    request = FakeRequest(1, [1, 2, 3, 4])
    drafts = fed(head, request)
    assert drafts.backlog([request]) == 3
    drafts.propose([request], 1)
    request.tokens.extend([5, 6])
    drafts.observe([request], streams_for(request, 6)[3:], np.array([3]), np.array([2]))
    assert drafts.backlog([request]) == 2
    drafts.propose([request], 1)
    assert drafts.backlog([request]) == 1  # asked again it starts from the last row


def test_a_missing_round_is_reported(head: TinyHead) -> None:
    request = FakeRequest(1, [1, 2, 3])
    drafts = fed(head, request)
    request.tokens.append(4)
    with pytest.raises(FeedbackError, match="all but the newest of its 4 tokens, have those of 2"):
        drafts.propose([request], 1)


def test_a_round_that_was_missed_by_one_request_costs_the_others_nothing(head: TinyHead) -> None:
    good, bad = FakeRequest(1, [1, 2, 3, 9, 4]), FakeRequest(2, [1, 2, 3])
    drafts = fed(head, good, bad)
    bad.tokens.append(4)
    with pytest.raises(FeedbackError, match="request 2"):
        drafts.propose([good, bad], 1)
    assert drafts.backlog([good]) == 4
    assert_same(drafts.propose([good], STEPS), fed(head, good).propose([good], STEPS))


def test_a_missing_prompt_chunk_is_reported(head: TinyHead) -> None:
    request = FakeRequest(1, list(range(9)))
    with pytest.raises(FeedbackError, match="from position 0 on, got a prompt chunk that starts at 4"):
        drafter(head).prefill(request, 4, streams_for(request, 4))


def test_hidden_states_that_do_not_fit_the_rows_are_reported(head: TinyHead) -> None:
    request = FakeRequest(1, [1, 2, 3])
    drafts = fed(head, request)
    with pytest.raises(FeedbackError, match="4 states for rows"):
        drafts.observe([request], streams_for(request, 4), np.array([3]), np.array([2]))


@pytest.mark.parametrize("shape", [(4, 71), (4, 24), (4, 3, 24), (72,)], ids=str)
def test_hidden_states_of_another_width_are_refused_before_anything_is_taken(
    head: TinyHead, shape: tuple[int, ...]
) -> None:
    request = FakeRequest(1, [1, 2, 3, 4, 5])
    drafts = fed(head, request)
    message = r"expected hidden states \[rows, 72\], got an array of shape"
    with pytest.raises(FeedbackError, match=message):
        drafts.prefill(request, 0, torch.ones(shape))
    with pytest.raises(FeedbackError, match=message):
        drafts.observe([request], torch.ones(shape), np.array([4]), np.array([1]))
    assert_same(drafts.propose([request], STEPS), fed(head, request).propose([request], STEPS))


@pytest.mark.parametrize("token", [-1, 50, 10**9])
def test_tokens_that_are_not_the_targets_are_refused(head: TinyHead, token: int) -> None:
    request = FakeRequest(1, [1, 2, 3, token])
    with pytest.raises(FeedbackError, match=r"expected one token of 0\.\.49 for each of 3 rows"):
        fed(head, request).propose([request], STEPS)


@pytest.mark.parametrize("accepted", [0, 3])
def test_accept_lengths_that_no_round_gives_are_refused(head: TinyHead, accepted: int) -> None:
    request = FakeRequest(1, [1, 2, 3])
    with pytest.raises(FeedbackError, match="accept lengths from 1 to them"):
        fed(head, request).observe([request], torch.ones(2, 72), np.array([2]), np.array([accepted]))


def test_states_may_lie_in_memory_in_any_order_and_belong_to_a_graph(head: TinyHead) -> None:
    request = FakeRequest(1, [1, 2, 3, 4])
    expected = fed(head, request).propose([request], STEPS)
    states = streams_for(request, 3)
    for given in (np.asfortranarray(states.numpy()), states.clone().requires_grad_(), states.double()):
        drafts = drafter(head)
        drafts.prefill(request, 0, given[:1])
        drafts.observe([request], given[1:], np.array([2]), np.array([2]))
        assert_same(drafts.propose([request], STEPS), expected)


def test_a_round_without_requests_is_nothing(head: TinyHead) -> None:
    drafter(head).observe([], torch.ones(0, 72), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def test_what_waits_for_one_request_keeps_no_rows_of_another(head: TinyHead) -> None:
    requests = [FakeRequest(1, [1, 2, 3, 4]), FakeRequest(2, [9, 8])]
    drafts = fed(head, *requests)
    drafts.observe(requests, torch.ones(6, 72), np.array([3, 3]), np.array([1, 3]))
    for backlog in drafts._backlogs.values():
        assert all(chunk.base is None for chunk in backlog.pending)


def test_a_forward_that_fails_loses_nothing(head: TinyHead, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FakeRequest(1, [1, 2, 3, 4])
    drafts = fed(head, request)
    drafts.propose([request], STEPS)
    right = streams_for(request, 5)[3:]
    request.tokens.extend([5, 6])
    drafts.observe([request], right, np.array([2]), np.array([2]))
    with monkeypatch.context() as patch:
        patch.setattr(drafts._network, "_fuse", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drafts.propose([request], STEPS)
    assert_same(drafts.propose([request], STEPS), fed(head, request).propose([request], STEPS))


def test_an_embedding_in_half_precision_is_refused(head: TinyHead) -> None:
    with pytest.raises(ModelError, match=r"expected the target's embedding in float32, got torch\.float16"):
        HeadDrafter(head.embedding.half(), head.weights)


def test_another_targets_embedding_is_refused(head: TinyHead) -> None:
    with pytest.raises(ModelError, match=f"hidden size {SHAPE.hidden_size}"):
        HeadDrafter(torch.zeros(50, 32), head.weights)
