"""A random Llama of a few thousand weights: for tests that need an engine but no language."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter

from lightspec_lightllm.engine import Engine, EngineOptions, Model, ModelConfig, Tokenizer, WeightFormat

EOS, USER, NEWLINE = "<|eos|>", "<|user|>", "Ċ"
_LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
_DIGITS = [chr(code) for code in range(ord("0"), ord("9") + 1)]
_BYTES_OF_ACCENTS = ["Ã", "©", "¨", "â", "Ĥ", "¬"]  # é, è and € in byte-level letters
_MERGED = ["th", "the", "an", "Ġa", "Ġthe", "Ã©"]
TOKENS = [EOS, USER, NEWLINE, "Ġ", ".", ",", *_LETTERS, *_DIGITS, *_BYTES_OF_ACCENTS, *_MERGED]
MERGES = ["t h", "th e", "a n", "Ġ a", "Ġ the", "Ã ©"]
TEMPLATE = "{% for message in messages %}<|user|>{{ message['content'] }}\n{% endfor %}"

CONFIG = ModelConfig(
    name="tiny",
    sha256="0" * 64,
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=48,
    max_positions=512,
    rope_base=10000.0,
    norm_epsilon=2.0**-17,
    tied_head=True,
    eos_token_id=0,
)


def tokenizer_data(vocab_size: int = 64) -> dict[str, Any]:
    tokens = TOKENS + [f"<unused{index}>" for index in range(vocab_size - len(TOKENS))]
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "types": [3 if token in (EOS, USER) or token.startswith("<unused") else 1 for token in tokens],
        "merges": MERGES,
        "bos": None,
        "eos": 0,
        "add_bos": False,
        "chat_template": TEMPLATE,
    }


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights by GGUF tensor name, query and key rows in the published (half-split rotary) order."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    hidden, kv_size = config.hidden_size, config.num_kv_heads * config.head_dim
    weights = {
        "token_embd.weight": draw(config.vocab_size, hidden, scale=1.0),
        "output_norm.weight": 1.0 + draw(hidden, scale=0.1),
    }
    if not config.tied_head:
        weights["output.weight"] = draw(config.vocab_size, hidden, scale=0.5)
    for layer in range(config.num_layers):
        block = f"blk.{layer}."
        weights |= {
            block + "attn_norm.weight": 1.0 + draw(hidden, scale=0.1),
            block + "attn_q.weight": draw(hidden, hidden, scale=0.4),
            block + "attn_k.weight": draw(kv_size, hidden, scale=0.4),
            block + "attn_v.weight": draw(kv_size, hidden, scale=0.4),
            block + "attn_output.weight": draw(hidden, hidden, scale=0.4),
            block + "ffn_norm.weight": 1.0 + draw(hidden, scale=0.1),
            block + "ffn_gate.weight": draw(config.ffn_size, hidden, scale=0.3),
            block + "ffn_up.weight": draw(config.ffn_size, hidden, scale=0.3),
            block + "ffn_down.weight": draw(hidden, config.ffn_size, scale=0.3),
        }
    return weights


def pair_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF's row order of query and key weights: the two halves of a head interleaved."""
    rows, columns = weight.shape
    return weight.view(num_heads, 2, rows // num_heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def engine_tensors(config: ModelConfig, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights under the names and in the forms the engine keeps."""
    tensors = {"embedding": weights["token_embd.weight"], "output_norm": weights["output_norm.weight"]}
    if not config.tied_head:
        tensors["head"] = weights["output.weight"]
    for layer in range(config.num_layers):
        block, name = f"blk.{layer}.", f"layers.{layer}."
        query = pair_rows(weights[block + "attn_q.weight"], config.num_heads)
        key = pair_rows(weights[block + "attn_k.weight"], config.num_kv_heads)
        tensors[name + "qkv"] = torch.cat([query, key, weights[block + "attn_v.weight"]])
        tensors[name + "gate_up"] = torch.cat([weights[block + "ffn_gate.weight"], weights[block + "ffn_up.weight"]])
        tensors[name + "attention_norm"] = weights[block + "attn_norm.weight"]
        tensors[name + "attention_output"] = weights[block + "attn_output.weight"]
        tensors[name + "ffn_norm"] = weights[block + "ffn_norm.weight"]
        tensors[name + "down"] = weights[block + "ffn_down.weight"]
    return tensors


def tiny_model(seed: int = 0, weights: WeightFormat = "float32", **changes: Any) -> tuple[Model, Tokenizer]:
    """A random model and its tokenizer; `changes` are fields of the configuration (vocab_size at least 64)."""
    config = replace(CONFIG, **changes)
    tensors = engine_tensors(config, random_weights(config, seed))
    return Model(config, tensors.__getitem__, weights), Tokenizer(tokenizer_data(config.vocab_size))


def tiny_engine(seed: int = 0, weights: WeightFormat = "float32", **options: Any) -> Engine:
    """An engine of one thread on a random model, with a small pool unless `options` say otherwise."""
    model, tokenizer = tiny_model(seed, weights)
    defaults: dict[str, Any] = {"threads": 1, "num_slots": 1024, "max_requests": 8, "max_context": 256, "max_rows": 16}
    return Engine(model, tokenizer, EngineOptions(weights=weights, **(defaults | options)))


def write_tiny_gguf(path: Path, config: ModelConfig = CONFIG, seed: int = 0, **metadata: Any) -> Path:
    """A GGUF file of the same random model. `metadata` adds or replaces: architecture, pre, extra_tensor."""
    writer = GGUFWriter(path, metadata.get("architecture", "llama"))
    data = tokenizer_data(config.vocab_size)
    writer.add_name(config.name)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_tokenizer_model(data["model"])
    writer.add_tokenizer_pre(metadata.get("pre", data["pre"]))
    writer.add_token_list(data["tokens"])
    writer.add_token_types(data["types"])
    writer.add_token_merges(data["merges"])
    writer.add_eos_token_id(data["eos"])
    writer.add_chat_template(data["chat_template"])
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name, weight in random_weights(config, seed).items():
        part = name.split(".")[-2]
        writer.add_tensor(name, (pair_rows(weight, heads[part]) if part in heads else weight).numpy())
    if "extra_tensor" in metadata:
        writer.add_tensor(metadata["extra_tensor"], np.zeros(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
