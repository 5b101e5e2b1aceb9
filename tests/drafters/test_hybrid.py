"""Which of its two drafters the hybrid asks, and what it hands back."""

import numpy as np
import pytest

from lightspec_lightllm.drafters import make_drafter
from lightspec_lightllm.drafters.head import HeadDrafter
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.drafters.ngram import NgramDrafter
from lightspec_lightllm.errors import ConfigError, ModelError
from tests.drafters.requests import FakeRequest, TinyHead, streams_for, tiny_head

STEPS = 4
REPEATS = FakeRequest(1, [1, 2, 3, 4, 5, 1, 2, 3])
SHORT_MATCH = FakeRequest(2, [1, 2, 3, 9, 2, 3])
NEW = FakeRequest(3, [1, 2, 3, 4])


@pytest.fixture(scope="module")
def tiny() -> TinyHead:
    return tiny_head()


def head_of(tiny: TinyHead) -> HeadDrafter:
    return HeadDrafter(tiny.embedding, tiny.weights, weight_kind="float32")


def hybrid_of(tiny: TinyHead, min_confidence: float = 0.7) -> HybridDrafter:
    return HybridDrafter(NgramDrafter(), head_of(tiny), min_confidence=min_confidence)


def test_a_likely_lookup_is_taken_and_all_else_goes_to_the_head(tiny: TinyHead) -> None:
    requests = [REPEATS, SHORT_MATCH, NEW]
    hybrid, head = hybrid_of(tiny), head_of(tiny)
    for request in requests:
        for drafter in (hybrid, head):
            drafter.prefill(request, 0, streams_for(request, len(request.tokens) - 1))
    mixed, looked_up, drafted = (d.propose(requests, STEPS) for d in (hybrid, NgramDrafter(), head))
    assert mixed.lengths.tolist() == [STEPS] * 3
    np.testing.assert_array_equal(mixed.tokens[0], looked_up.tokens[0])
    np.testing.assert_array_equal(mixed.confidence[0], looked_up.confidence[0])
    np.testing.assert_array_equal(mixed.tokens[1:], drafted.tokens[1:])
    np.testing.assert_allclose(mixed.confidence[1:], drafted.confidence[1:], rtol=1e-4)


def test_only_steps_of_the_head_were_made(tiny: TinyHead) -> None:
    class Stop:
        def worth_another_step(self, confidence: np.ndarray, request_ids: np.ndarray) -> bool:
            return int(confidence.shape[1]) < 2

    requests = [REPEATS, SHORT_MATCH, NEW]
    hybrid = hybrid_of(tiny)
    for request in requests:
        hybrid.prefill(request, 0, streams_for(request, len(request.tokens) - 1))
    mixed = hybrid.propose(requests, STEPS, Stop())
    assert mixed.lengths.tolist() == [STEPS, 2, 2]
    assert mixed.steps == 2
    assert hybrid.propose([REPEATS], STEPS).steps == 0
    assert NgramDrafter().propose([REPEATS], STEPS).steps == STEPS


def test_how_likely_a_lookup_must_be_is_an_option(tiny: TinyHead) -> None:
    hybrid = hybrid_of(tiny, min_confidence=0.3)
    assert hybrid.propose([SHORT_MATCH], 1).tokens.tolist() == [[9]]


def test_the_head_takes_over_from_lookups_without_a_gap(tiny: TinyHead) -> None:
    request = FakeRequest(1, list(REPEATS.tokens))
    hybrid = hybrid_of(tiny)
    hybrid.prefill(request, 0, streams_for(request, 7))
    hybrid.propose([request], STEPS)
    request.tokens.extend([4, 7])  # one lookup was right, then the target went its own way
    hybrid.observe([request], streams_for(request, 10)[7:], np.array([3]), np.array([2]))
    head = head_of(tiny)
    head.prefill(request, 0, streams_for(request, 9))
    np.testing.assert_array_equal(hybrid.propose([request], STEPS).tokens, head.propose([request], STEPS).tokens)


def test_release_reaches_both_drafters(tiny: TinyHead) -> None:
    hybrid = hybrid_of(tiny)
    hybrid.prefill(NEW, 0, streams_for(NEW, 3))
    hybrid.propose([NEW], STEPS)
    hybrid.release(NEW.request_id)
    assert hybrid.backlog([NEW]) == 0
    assert not hybrid._ngram._indexes
    assert hybrid.propose([NEW], STEPS).lengths.tolist() == [0]


def test_drafters_are_made_by_name(tiny: TinyHead, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    tiny.weights.save(path)
    for name, kind in (("ngram", "free"), ("head", "serial"), ("hybrid", "serial")):
        drafter = make_drafter(name, embedding=tiny.embedding, weights=path, max_draft_steps=5)
        assert (drafter.name, drafter.kind, drafter.max_draft_steps) == (name, kind, 5)
        assert drafter.capture_layers == (() if name == "ngram" else (1, 2, 4))


def test_unknown_names_and_missing_parts_are_named(tiny: TinyHead) -> None:
    with pytest.raises(ConfigError, match="ngram, head, hybrid, got 'eagle'"):
        make_drafter("eagle")
    with pytest.raises(ConfigError, match="reads the target's embedding"):
        make_drafter("head")
    with pytest.raises(ModelError, match="use the n-gram drafter"):
        make_drafter("head", embedding=tiny.embedding)
