"""The scripts that train the head: records, the objective, the optimizer, the acceptance they report."""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks.head.acceptance import Acceptance, measure
from benchmarks.head.generate import loops, tidy
from benchmarks.head.network import DraftHead
from benchmarks.head.objective import Example, SparseCrossEntropy, choose_vocabulary, loss_of, teach
from benchmarks.head.openings import Opening
from benchmarks.head.optimizer import MatrixOptimizer, orthogonal
from benchmarks.head.recording import Recording, load_shard, save_shard, shards
from tests.drafters.requests import SHAPE, STREAMS, VOCAB, tiny_head


def recordings(count: int) -> list[Recording]:
    """Responses that count upwards from a start in the prompt, with streams that say nothing."""
    rng = np.random.default_rng(5)
    found = []
    for index in range(count):
        length = int(rng.integers(12, 20))
        tokens = (np.arange(length) + int(rng.integers(0, VOCAB))) % VOCAB
        hidden = rng.standard_normal((length - 1, STREAMS)).astype(np.float16)
        found.append(Recording("chat" if index % 2 else "code", 0.8 * (index % 2), 4, tokens.astype(np.int32), hidden))
    return found


def test_shards_come_back_and_unfinished_ones_stay_hidden(tmp_path: Path) -> None:
    written = recordings(3)
    save_shard(tmp_path / "shard-0.npz", written)
    (tmp_path / "shard-1.partial.npz").touch()
    assert shards(tmp_path) == [tmp_path / "shard-0.npz"]
    for before, after in zip(written, load_shard(tmp_path / "shard-0.npz"), strict=True):
        assert (after.kind, after.temperature, after.prompt_length) == (
            before.kind,
            before.temperature,
            before.prompt_length,
        )
        np.testing.assert_array_equal(after.tokens, before.tokens)
        np.testing.assert_array_equal(after.hidden, before.hidden)


def test_the_written_out_gradient_is_the_one_of_autograd() -> None:
    torch.manual_seed(0)
    hidden, rows = torch.randn(6, 5, requires_grad=True), torch.randn(9, 5)
    index = torch.stack([torch.randperm(9)[:3] for _ in range(6)])
    chance = torch.rand(6, 3)
    chance /= chance.sum(-1, keepdim=True)
    dense = torch.zeros(6, 9).scatter_(1, index, chance)
    plain = functional.cross_entropy(hidden @ rows.T, dense, reduction="sum")
    (wanted,) = torch.autograd.grad(plain, hidden)
    loss: torch.Tensor = SparseCrossEntropy.apply(hidden, rows, chance, index)  # type: ignore[no-untyped-call] # torch
    (found,) = torch.autograd.grad(loss, hidden)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, wanted)


def test_training_lowers_the_loss_on_its_data() -> None:
    tiny = tiny_head()
    data = recordings(6)
    vocabulary = choose_vocabulary(data, tiny.embedding, 40)
    norm = torch.ones(SHAPE.hidden_size)
    examples = [Example(each, teach(each, vocabulary, norm, 1e-5)) for each in data]
    optimizer = MatrixOptimizer(tiny.module.parameters())
    losses = []
    for _ in range(25):
        loss, anchors = loss_of(tiny.module, examples, vocabulary, tiny.embedding, steps=3)
        loss.backward()  # type: ignore[no-untyped-call] # torch
        optimizer.step(0.02)
        losses.append(float(loss.detach()))
    assert anchors > 0
    assert losses[-1] < 0.8 * losses[0]


def test_the_draft_vocabulary_holds_the_most_frequent_tokens_of_the_responses() -> None:
    data = recordings(20)
    vocabulary = choose_vocabulary(data, torch.randn(VOCAB, SHAPE.hidden_size), 10)
    counts = np.bincount(np.concatenate([each.tokens[4:] for each in data]), minlength=VOCAB)
    inside = counts[vocabulary.ids.numpy()]
    outside = np.delete(counts, vocabulary.ids.numpy())
    assert inside.min() >= outside.max()
    assert vocabulary.position[vocabulary.ids].tolist() == list(range(10))


def test_orthogonal_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    for shape in ((6, 20), (20, 6)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.5
        assert float(values.max()) < 1.5


def test_acceptance_counts_a_draft_only_behind_accepted_ones() -> None:
    hits = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=bool)
    found = Acceptance(hits, np.ones_like(hits), np.full(hits.shape, 0.5))
    np.testing.assert_allclose(found.conditional, [3 / 4, 2 / 3, 1 / 2])
    assert found.mean_accepted == (2 + 1 + 0 + 3) / 4
    assert sum(count for count, _, _ in found.calibration(1, bins=2)) == 3


def test_a_measured_head_is_the_same_after_a_round_trip_through_its_checkpoint() -> None:
    tiny = tiny_head()
    data = recordings(5)
    first = measure(tiny.module, data, tiny.draft_vocab, tiny.embedding, steps=3, batch_size=2)
    again = measure(DraftHead.load(tiny.weights), data, tiny.draft_vocab, tiny.embedding, steps=3, batch_size=5)
    assert len(first.hits) == sum(each.response_length - 1 for each in data)
    assert first.hits.sum() == again.hits.sum()
    np.testing.assert_allclose(np.sort(first.confidence, axis=None), np.sort(again.confidence, axis=None), rtol=1e-4)


def test_loops_are_seen_after_two_long_turns() -> None:
    assert not loops(list(range(80)))
    assert not loops([*range(40), *[7] * 30])
    assert loops([*range(10), *[7] * 61])
    assert loops([1, *list(range(35)) * 2])


def test_messages_end_where_the_user_would() -> None:
    code = Opening("code", 'def f(n):\n    """ Add', '"""')
    assert tidy(code, 'def f(n):\n    """ Add one. """\n    return n + 1') == 'def f(n):\n    """ Add one.\n    """'
    maths = Opening("maths", "Ana has 3 apples.", "?")
    question = "Ana has 3 apples. She buys 4 more apples. How many apples has she"
    assert tidy(maths, f"{question}? The answer is") == f"{question}?"
    assert tidy(maths, "Ana has 3 apples. She eats them all.") == ""
