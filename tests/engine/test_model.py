from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from lightspec_lightllm.cpu import linear
from lightspec_lightllm.engine import (
    Engine,
    EngineOptions,
    Model,
    ModelConfig,
    SamplingParams,
    WeightFormat,
    load_model,
)
from lightspec_lightllm.engine import Sequence as Request
from lightspec_lightllm.errors import ModelError
from tests.engine.tiny_llama import CONFIG, random_weights, tiny_engine, tiny_model, write_tiny_gguf

ROWS = [5, 1, 3, 8, 1, 2]


def reference(config: ModelConfig, weights: dict[str, torch.Tensor], tokens: Sequence[int]) -> list[torch.Tensor]:
    """The Llama equations for one text, as published: inputs of every layer, the last residual stream, the logits."""
    length, dim = len(tokens), config.head_dim
    inverse = 1.0 / config.rope_base ** (torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(length).float(), inverse).repeat(1, 2)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_epsilon).sqrt() * weight

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1)
        return x * angles.cos() + half * angles.sin()

    def heads(x: torch.Tensor, name: str, count: int) -> torch.Tensor:
        return (x @ weights[name].T).view(length, count, dim).transpose(0, 1)

    x = weights["token_embd.weight"][list(tokens)]
    streams = [x]
    causal = torch.ones(length, length).triu(1).bool()
    repeats = config.num_heads // config.num_kv_heads
    for layer in range(config.num_layers):
        block = f"blk.{layer}."
        h = norm(x, weights[block + "attn_norm.weight"])
        query = turned(heads(h, block + "attn_q.weight", config.num_heads))
        key = turned(heads(h, block + "attn_k.weight", config.num_kv_heads)).repeat_interleave(repeats, 0)
        value = heads(h, block + "attn_v.weight", config.num_kv_heads).repeat_interleave(repeats, 0)
        scores = (query @ key.transpose(1, 2) / dim**0.5).masked_fill(causal, float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(length, -1)
        x = x + mixed @ weights[block + "attn_output.weight"].T
        h = norm(x, weights[block + "ffn_norm.weight"])
        gate = h @ weights[block + "ffn_gate.weight"].T
        up = h @ weights[block + "ffn_up.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ weights[block + "ffn_down.weight"].T
        streams.append(x)
    head = weights["token_embd.weight" if config.tied_head else "output.weight"]
    return [*streams, norm(x, weights["output_norm.weight"]) @ head.T]


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(1, 64, size=length).tolist() for length in lengths]


def forward_of(
    engine: Engine, prompts: list[list[int]], rows: list[int]
) -> tuple[torch.Tensor, list[list[int]], list[Request]]:
    """Prefill all but the last rows of each text and run those rows: logits, and the texts the rows stood for."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for prompt in prompts:
        engine.submit(prompt, params)
    widest = max(rows)
    while len(seqs := engine.schedule(widest)) < len(prompts):
        pass
    tokens = np.random.default_rng(3).integers(1, 64, size=(len(prompts), widest))
    tokens[:, 0] = [sequence.tokens[-1] for sequence in seqs]
    texts = [sequence.tokens[:-1] + tokens[i, : rows[i]].tolist() for i, sequence in enumerate(seqs)]
    return engine.forward(seqs, tokens, np.array(rows)).logits, texts, seqs


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("prefill_chunk", [7, 256])
def test_logits_of_a_gguf_equal_an_independent_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied_head: bool, prefill_chunk: int
) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    config = replace(CONFIG, tied_head=tied_head)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config)
    model, tokenizer = load_model(path, "float32")
    assert replace(model.config, sha256=config.sha256) == config
    options = EngineOptions("float32", threads=1, num_slots=2048, prefill_chunk=prefill_chunk, max_context=256)
    logits, texts, _ = forward_of(Engine(model, tokenizer, options), prompts_of([30, 9, 17, 28, 1, 60]), ROWS)
    weights = random_weights(config)
    expected = torch.cat([reference(config, weights, text)[-1][-n:] for text, n in zip(texts, ROWS, strict=True)])
    assert expected.std() > 1.0
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("weights", get_args(WeightFormat))
def test_a_row_does_not_depend_on_the_other_rows_of_its_batch(weights: WeightFormat) -> None:
    prompts = prompts_of([30, 9, 17, 28, 1, 60])
    together, _, _ = forward_of(tiny_engine(weights=weights), prompts, ROWS)
    ends = np.cumsum(ROWS)
    for index, count in enumerate(ROWS):
        engine = tiny_engine(weights=weights)
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        engine.submit(prompts[index], params)
        seqs = engine.schedule(1)
        tokens = np.random.default_rng(3).integers(1, 64, size=(len(prompts), max(ROWS)))[index : index + 1]
        tokens[0, 0] = seqs[0].tokens[-1]
        for row in range(count):  # one row at a time, each draft committed before the next
            logits = engine.forward(seqs, tokens[:, row : row + 1], np.array([1])).logits
            torch.testing.assert_close(logits[0], together[ends[index] - count + row], atol=3e-4, rtol=1e-5)
            if row + 1 < count:
                engine.commit(seqs, tokens[:, row + 1 : row + 2], np.array([1]))
                seqs = engine.schedule(1)


def test_scattered_slots_give_the_logits_of_slots_in_one_run() -> None:
    prompts = prompts_of([30, 9, 17, 28, 1, 60])
    expected, _, _ = forward_of(tiny_engine(), prompts, ROWS)
    engine = tiny_engine()
    scattered = engine.slots.open(1)
    engine.slots._claims[scattered] = (0, 0)
    engine.slots._owner[::5] = scattered  # every fifth slot is taken, so that no request finds a run
    engine.slots._table[scattered, : engine.slots._owner[::5].size] = np.arange(0, 1024, 5)
    engine.slots._lengths[scattered] = engine.slots._owner[::5].size
    engine.slots.num_free -= engine.slots._owner[::5].size
    engine.slots.check()
    logits, _, seqs = forward_of(engine, prompts, ROWS)
    assert all(engine.slots.run_start(sequence.slot_row, 1) is None for sequence in seqs)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-5)


def test_captured_hidden_states_are_the_inputs_of_the_layers() -> None:
    engine = tiny_engine(prefill_chunk=16)
    engine.model.capture_layers = (2, 0, 1)
    heard: dict[int, list[tuple[int, torch.Tensor]]] = {}
    engine.prefill_listener = lambda sequence, start, hidden: heard.setdefault(sequence.request_id, []).append(
        (start, hidden)
    )
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for prompt in prompts_of([30, 9, 17]):
        engine.submit(prompt, params)
    while len(seqs := engine.schedule(4)) < 3:
        pass
    rows = np.array([4, 1, 3])
    tokens = np.random.default_rng(3).integers(1, 64, size=(3, 4))
    hidden = engine.forward(seqs, tokens, rows).hidden
    assert hidden is not None
    weights, ends = random_weights(CONFIG), np.cumsum(rows)
    for index, sequence in enumerate(seqs):
        text = sequence.tokens[:-1] + tokens[index, : rows[index]].tolist()
        streams = reference(CONFIG, weights, text)
        expected = torch.cat([streams[2], streams[0], streams[1]], dim=1)
        stretches = heard[sequence.request_id]
        assert [start for start, _ in stretches] == np.cumsum([0, *[len(h) for _, h in stretches]]).tolist()[:-1]
        prefilled = torch.cat([stretch for _, stretch in stretches])
        torch.testing.assert_close(prefilled, expected[: sequence.num_computed], atol=2e-4, rtol=1e-5)
        own = hidden[ends[index] - rows[index] : ends[index]]
        torch.testing.assert_close(own, expected[sequence.num_computed :], atol=2e-4, rtol=1e-5)
    hidden.add_(1.0)  # a drafter may compute on it in place


def test_capturing_a_layer_the_model_lacks_is_refused() -> None:
    model, _ = tiny_model()
    with pytest.raises(ModelError, match="capture layer 3"):
        model.capture_layers = (0, 3)


def test_without_the_packed_kernels_the_plain_product_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _, _ = forward_of(tiny_engine(weights="float16"), prompts_of([30, 9]), [3, 1])
    monkeypatch.setattr(linear, "_pack_half", lambda _: None)
    monkeypatch.setattr(linear, "_pack_single", lambda _: None)
    plain, _, _ = forward_of(tiny_engine(weights="float16"), prompts_of([30, 9]), [3, 1])
    torch.testing.assert_close(plain, expected, atol=2e-4, rtol=1e-5)
    single, _, _ = forward_of(tiny_engine(weights="float32"), prompts_of([30, 9]), [3, 1])
    assert not torch.equal(single, plain)


def test_the_model_keeps_the_embedding_for_drafters() -> None:
    model, _ = tiny_model(vocab_size=70)
    assert isinstance(model, Model)
    assert model.embedding.shape == (70, 32)
    assert model.embedding.dtype == torch.float32
