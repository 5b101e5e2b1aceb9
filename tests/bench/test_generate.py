"""One prompt: its text arrives in pieces that add up, with what it took."""

from lightspec_lightllm.bench.generate import answer
from lightspec_lightllm.engine.options import SamplingParams
from tests.bench.fakes import FakeHost


def test_the_pieces_add_up_to_the_text() -> None:
    host, pieces = FakeHost(), list[str]()
    found = answer(host, host.chat("hello"), SamplingParams(max_tokens=8), "lightspec", on_text=pieces.append)
    assert len(pieces) == found.rounds == 3
    assert len("".join(pieces)) == len(found.tokens) == 8
    assert found.finish_reason == "length"
    assert 0 < found.first_token <= found.duration
    assert found.line().startswith("lightspec: 8 tokens in ")


def test_strategies_answer_alike() -> None:
    host = FakeHost()
    answers = [
        answer(host, [1, 2], SamplingParams(max_tokens=5), strategy, on_text=lambda _: None)
        for strategy in ("off", "lightspec")
    ]
    assert answers[0].tokens == answers[1].tokens
    assert answers[0].rounds > answers[1].rounds
