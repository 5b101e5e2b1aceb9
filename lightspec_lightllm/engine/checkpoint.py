"""GGUF files of Llama-architecture models, converted once to plain float32 and read back in a fraction of a second.

A converted checkpoint is a folder in the cache, keyed by the GGUF's hash and FORMAT:

    metadata.json   architecture, tokenizer and the tensor table {name: [offset in bytes, shape]}
    tensors.bin     float32 tensors, little endian, one after another

Tensors that one matrix product serves are stored fused: `layers.0.qkv` is query, key and value rows in that order.
Query and key rows keep GGUF's order, in which rotary pairs are neighbours.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.engine.fetch import ProgressListener, cache_dir, sha256_of
from lightspec_lightllm.errors import ModelError

FORMAT = 1
FloatArray = npt.NDArray[np.float32]

_TOKENIZER_KEYS = {
    "model": "tokenizer.ggml.model",
    "pre": "tokenizer.ggml.pre",
    "tokens": "tokenizer.ggml.tokens",
    "types": "tokenizer.ggml.token_type",
    "merges": "tokenizer.ggml.merges",
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "add_bos": "tokenizer.ggml.add_bos_token",
    "chat_template": "tokenizer.chat_template",
}


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama decoder. `name` and `sha256` say which model it is."""

    name: str
    sha256: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    rope_base: float
    norm_epsilon: float
    tied_head: bool
    eos_token_id: int


class Checkpoint:
    """A converted model: its configuration, its tokenizer's data and its tensors."""

    def __init__(self, folder: Path) -> None:
        try:
            stored = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
            self.config = ModelConfig(**stored["config"])
            self.tokenizer: dict[str, Any] = stored["tokenizer"]
            self._table: dict[str, tuple[int, list[int]]] = stored["tensors"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"converted model {folder} is damaged ({error}); delete the folder and start again"
            ) from None
        _check_heads(folder, self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)
        self._data = folder / "tensors.bin"

    def tensor(self, name: str) -> FloatArray:
        """A fresh float32 array; nothing stays mapped."""
        offset, shape = self._table[name]
        values = np.empty(shape, dtype="<f4")
        with self._data.open("rb", buffering=0) as file:
            file.seek(offset)
            size = file.readinto(values.data.cast("B"))
        if size != values.nbytes:
            raise ModelError(f"converted model {self._data} is truncated; delete {self._data.parent} and start again")
        return values


def open_checkpoint(path: Path, progress: ProgressListener | None = None) -> Checkpoint:
    """The converted form of a GGUF file, made on the first call. ModelError unless it is a whole Llama GGUF."""
    if not path.is_file():
        raise ModelError(f"no model file at {path}; give the path of a GGUF file, or none for the default model")
    sha256 = sha256_of(path)
    folder = cache_dir() / "models" / f"{sha256[:24]}-{FORMAT}"
    if not (folder / "metadata.json").is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix="convert-", dir=folder.parent))
            try:
                convert(path, scratch, sha256, progress)
                if folder.exists():
                    shutil.rmtree(folder)
                scratch.replace(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            raise ModelError(
                f"cannot write the converted model to {folder.parent}: {error}; set LIGHTSPEC_CACHE to another folder"
            ) from error
    return Checkpoint(folder)


def convert(path: Path, folder: Path, sha256: str, progress: ProgressListener | None = None) -> None:
    """Write the converted form of the GGUF file `path` into `folder`."""
    label = f"converting {path.name} (once)"
    if progress:
        progress(label, 0, 0)
    metadata, tensors = _read_gguf(path)
    config = _config_of(path, metadata, tensors, sha256)
    plan = list(_plan(config))
    parts = {part for _, names in plan for part in names}
    unknown = sorted(set(tensors) - parts)
    if unknown:
        raise ModelError(
            f"{path}: tensor {unknown[0]} is not part of a plain Llama decoder; use a Llama model without it"
        )
    table: dict[str, tuple[int, list[int]]] = {}
    with (folder / "tensors.bin").open("wb") as file:
        for done, (name, names) in enumerate(plan, start=1):
            missing = [part for part in names if part not in tensors]
            if missing:
                raise ModelError(f"{path}: tensor {missing[0]} is missing; the file is truncated or not a Llama model")
            values = np.concatenate([tensors[part]() for part in names])
            if values.shape != _shape_of(name, config):
                raise ModelError(
                    f"{path}: {names[0]} gives {name} of shape {values.shape}, expected {_shape_of(name, config)}"
                )
            table[name] = (file.tell(), list(values.shape))
            file.write(values.astype("<f4", copy=False).tobytes())
            if progress:
                progress(label, done, len(plan))
    stored = {
        "config": asdict(config),
        "tokenizer": {name: metadata.get(key) for name, key in _TOKENIZER_KEYS.items()},
        "tensors": table,
    }
    (folder / "metadata.json").write_text(json.dumps(stored), encoding="utf-8")


def _read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Callable[[], FloatArray]]]:
    """Metadata, and for every tensor a function that gives its float32 values."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file; give the path of a Llama model in GGUF format")
    from gguf import GGUFReader  # it takes a while to import and is needed once
    from gguf.quants import dequantize

    try:
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        tensors: dict[str, Callable[[], FloatArray]] = {}
        for tensor in reader.tensors:

            def values(tensor: Any = tensor) -> FloatArray:
                return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

            tensors[tensor.name] = values
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, NotImplementedError) as error:
        raise ModelError(
            f"{path} cannot be read as GGUF ({error}); the file is truncated or damaged, get it again"
        ) from None
    return metadata, tensors


def _config_of(path: Path, metadata: dict[str, Any], tensors: dict[str, Any], sha256: str) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{path} holds a model of architecture {architecture!r}; this engine serves 'llama' models")

    def need(key: str) -> Any:
        if key not in metadata:
            raise ModelError(f"{path}: metadata key {key} is missing; the file is truncated or not a Llama model")
        return metadata[key]

    num_heads = int(need("llama.attention.head_count"))
    hidden_size = int(need("llama.embedding_length"))
    num_kv_heads = int(metadata.get("llama.attention.head_count_kv", num_heads))
    head_dim = int(metadata.get("llama.rope.dimension_count", hidden_size // max(num_heads, 1)))
    _check_heads(path, num_heads, num_kv_heads, head_dim)
    if head_dim * num_heads != hidden_size or metadata.get("llama.rope.scaling.type", "none") != "none":
        raise ModelError(f"{path}: partial or scaled rotary positions are not supported; use a plain Llama model")
    tokens = need(_TOKENIZER_KEYS["tokens"])
    return ModelConfig(
        name=str(metadata.get("general.name", path.stem)),
        sha256=sha256,
        vocab_size=len(tokens),
        hidden_size=hidden_size,
        num_layers=int(need("llama.block_count")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=int(need("llama.feed_forward_length")),
        max_positions=int(need("llama.context_length")),
        rope_base=float(metadata.get("llama.rope.freq_base", 10000.0)),
        norm_epsilon=float(need("llama.attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in tensors,
        eos_token_id=int(need(_TOKENIZER_KEYS["eos"])),
    )


def _check_heads(path: Path, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ModelError(
            f"{path}: {num_heads} attention heads cannot share {num_kv_heads} key heads evenly;"
            " use a model whose heads are a multiple of its key heads"
        )
    if head_dim < 2 or head_dim % 2:
        raise ModelError(
            f"{path}: heads of {head_dim} numbers have no rotary pairs; use a model whose heads have an even number"
        )


def _plan(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Stored tensors in file order, each with the GGUF tensors it is made of."""
    yield "embedding", ["token_embd.weight"]
    yield "output_norm", ["output_norm.weight"]
    if not config.tied_head:
        yield "head", ["output.weight"]
    for layer in range(config.num_layers):
        block = f"blk.{layer}."
        yield f"layers.{layer}.attention_norm", [f"{block}attn_norm.weight"]
        yield f"layers.{layer}.qkv", [f"{block}attn_{part}.weight" for part in "qkv"]
        yield f"layers.{layer}.attention_output", [f"{block}attn_output.weight"]
        yield f"layers.{layer}.ffn_norm", [f"{block}ffn_norm.weight"]
        yield f"layers.{layer}.gate_up", [f"{block}ffn_gate.weight", f"{block}ffn_up.weight"]
        yield f"layers.{layer}.down", [f"{block}ffn_down.weight"]


def _shape_of(name: str, config: ModelConfig) -> tuple[int, ...]:
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, hidden),
        "head": (config.vocab_size, hidden),
        "qkv": ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, hidden),
        "attention_output": (hidden, config.num_heads * config.head_dim),
        "gate_up": (2 * config.ffn_size, hidden),
        "down": (hidden, config.ffn_size),
    }
    return shapes.get(name.rsplit(".", 1)[-1], (hidden,))
