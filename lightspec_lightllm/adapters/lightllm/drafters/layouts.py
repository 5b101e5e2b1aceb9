"""The published layouts of drafters, read from ``config.json``.

============  =======================================  =====================  ==================================
layout        known by                                 kinds                  ids of captured layers are
============  =======================================  =====================  ==================================
speculators   ``speculators_model_type``               eagle3, dflash,        layers that the state enters
                                                       dspark
DeepSpec      ``Qwen3Eagle3Model``,                    eagle3, dflash,        layers that it leaves;
              ``Qwen3DSparkModel``                     dspark                 -1: the embedding
DFlash        ``dflash_config``                        dflash                 layers that it leaves
Eagle3        ``draft_vocab_size``, or an              eagle3                 layers that it leaves
              architecture that ends in ``Eagle3``
============  =======================================  =====================  ==================================

Here a captured state is always that which enters a layer: point ``p`` is the residual stream before layer ``p``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightspec_lightllm.errors import ModelError
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS

Kind = Literal["eagle3", "dflash", "dspark"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BLOCK_KINDS: tuple[Kind, ...] = ("dflash", "dspark")

Config = Mapping[str, Any]

_ROPE_SCALINGS = ("llama3", "yarn", "dynamic")
"""Scalings of rotary positions that LightLLM's Llama decoder has and whose parameters are all in one section."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
}  # fmt: skip
"""What transformers takes for keys that a configuration leaves out; it writes only those that differ."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Shape of a drafter's decoder layers.

    Attributes:
        vocab_size: of its input, which is the target's.
        rope_scaling: as transformers writes it, None for plain rotary positions.
        has_qk_norm: queries and keys are normed per head.
        has_bias: projections of attention have biases.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_epsilon: float
    max_positions: int
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    has_qk_norm: bool
    has_bias: bool


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    """What Eagle3 drafters do differently.

    Attributes:
        norm_before_residual: the residual starts from the normed hidden state.
        norm_before_fc: one norm over all captured states before their projection.
        fc_norm: one norm per captured state.
        norm_output: the hidden state goes into the next step normed.
    """

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What a block drafter is.

    Attributes:
        block_size: rows of a block.
        mask_token_id: token of the rows behind the first one.
        drafts_from_anchor: the first row, which holds the last committed token, drafts its successor, and row i the
            token i + 1 places on; else row i > 0 drafts the token at its own place.
        markov_rank: of the head that conditions a draft on the one before; 0: there is none.
        markov_head: its kind: "vanilla", "gated" or "rnn".
        has_confidence: a head predicts whether a draft is accepted.
        confidence_reads_markov: that head also reads the embedding of the draft before.
    """

    block_size: int
    mask_token_id: int
    drafts_from_anchor: bool
    markov_rank: int = 0
    markov_head: Literal["vanilla", "gated", "rnn"] = "vanilla"
    has_confidence: bool = False
    confidence_reads_markov: bool = False

    @property
    def num_drafts(self) -> int:
        """Tokens that one block proposes."""
        return self.block_size if self.drafts_from_anchor else self.block_size - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A ``config.json`` as this package understands it.

    Attributes:
        name: of the layout.
        capture_points: see the module; None: the three of Eagle3, which depend on the target's depth.
        target_hidden_size: width of the captured states.
        num_target_layers: layers of the target that it was trained for, None where the file does not say.
        draft_vocab_size: rows of its output layer.
    """

    name: str
    kind: Kind
    decoder: Decoder
    capture_points: tuple[int, ...] | None
    target_hidden_size: int
    num_target_layers: int | None
    draft_vocab_size: int
    settings: Eagle3Settings | BlockSettings

    @property
    def max_draft_steps(self) -> int:
        """The largest K."""
        if isinstance(self.settings, BlockSettings):
            return min(self.settings.num_drafts, MAX_DRAFT_STEPS)
        return MAX_DRAFT_STEPS


def default_eagle3_points(num_target_layers: int) -> tuple[int, ...]:
    """Where Eagle3 looks unless its configuration says otherwise: near the start, the middle and near the end."""
    return 2, num_target_layers // 2, num_target_layers - 3


def read_layout(config: Config, where: str) -> Layout:
    """What a configuration describes.

    Args:
        where: the file, for messages.

    Raises:
        ModelError: it is of no known layout, or is one that cannot be served; the message names the key.
    """
    reader = _Reader(config, where)
    architectures = config.get("architectures") or [""]
    if "speculators_model_type" in config:
        return _speculators(reader)
    if architectures[0] == "Qwen3Eagle3Model":
        return _deepspec_eagle3(reader)
    if architectures[0] == "Qwen3DSparkModel":
        return _deepspec_block(reader)
    if "dflash_config" in config:
        return _dflash(reader)
    if "draft_vocab_size" in config or architectures[0].endswith("Eagle3"):
        return _eagle3(reader)
    raise ModelError(
        f"{where}: expected a drafter in the layout of Eagle3, DFlash, DeepSpec or speculators, got architecture "
        f"{architectures[0] or 'none'}; MTP layers are served with --mtp_mode eagle_* or vanilla_*"
    )


class _Reader:
    """Typed values of a configuration; whatever is missing or of another type is named."""

    def __init__(self, config: Config, where: str) -> None:
        self.config = config
        self.where = where

    def section(self, key: str) -> _Reader:
        return _Reader(self.need(key, dict), f"{self.where}: {key}")

    def need(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.config.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.where}: expected the key {key}, which is missing; is the file whole?")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(f"{self.where}: {key}: expected {kind.__name__}, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key)
        return float(self.need(key, int if isinstance(value, int) else float, default))

    def flag(self, key: str, *, default: bool = False) -> bool:
        return bool(self.need(key, bool, default))

    def layer_ids(self, key: str) -> list[int] | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(type(one) is int for one in value):
            raise ModelError(f"{self.where}: {key}: expected layers, got {value!r}")
        return value

    def refuse(self, key: str, reason: str) -> ModelError:
        return ModelError(f"{self.where}: {key} {self.config.get(key)!r} is not supported: {reason}")


def _decoder(reader: _Reader, *, has_qk_norm: bool) -> Decoder:
    """Of a configuration with transformers' names for the keys of a Llama or Qwen3 decoder."""
    config = reader.config
    if config.get("hidden_act", "silu") != "silu":
        raise reader.refuse("hidden_act", "expected silu")
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise reader.refuse("layer_types", "expected full attention in all layers")
    defaults = _DEFAULTS["qwen3" if has_qk_norm else "llama"]

    def size(key: str, default: int | None = None) -> int:
        value: int = reader.need(key, int, defaults.get(key, default))
        if value < 1:
            raise ModelError(f"{reader.where}: {key}: expected at least 1, got {value}")
        return value

    hidden_size, num_heads = size("hidden_size"), size("num_attention_heads")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", *_ROPE_SCALINGS):
        raise ModelError(
            f"{reader.where}: rotary positions scaled by {scaling!r} are not supported: expected none or "
            f"{', '.join(_ROPE_SCALINGS)}"
        )
    return Decoder(
        hidden_size=hidden_size,
        num_layers=size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=size("num_key_value_heads", num_heads),
        head_dim=size("head_dim", hidden_size // num_heads),
        intermediate_size=size("intermediate_size"),
        vocab_size=size("vocab_size"),
        norm_epsilon=reader.number("rms_norm_eps", 1e-6),
        max_positions=size("max_position_embeddings"),
        rope_theta=float(theta),
        rope_scaling=None if scaling == "default" else rope,
        has_qk_norm=has_qk_norm,
        has_bias=reader.flag("attention_bias"),
    )


def _points(ids: list[int] | None, *, leaving: bool) -> tuple[int, ...] | None:
    return None if ids is None else tuple(one + 1 for one in ids) if leaving else tuple(ids)


def _one_layer(decoder: Decoder, reader: _Reader) -> Decoder:
    if decoder.num_layers != 1:
        raise reader.refuse("num_hidden_layers", "expected an Eagle3 drafter of one layer")
    return decoder


def _eagle3(reader: _Reader) -> Layout:
    """The common layout, as Eagle3's authors and SpecForge write it."""
    config = reader.config
    decoder = _one_layer(_decoder(reader, has_qk_norm=False), reader)
    eagle = reader.section("eagle_config") if config.get("eagle_config") else _Reader({}, reader.where)
    if config.get("norm_output") is False:
        raise reader.refuse("norm_output", "expected a norm before the output layer")
    return Layout(
        name="Eagle3",
        kind="eagle3",
        decoder=decoder,
        capture_points=_points(eagle.layer_ids("eagle_aux_hidden_state_layer_ids"), leaving=True),
        target_hidden_size=reader.need("target_hidden_size", int, decoder.hidden_size),
        num_target_layers=None,
        draft_vocab_size=reader.need("draft_vocab_size", int, decoder.vocab_size),
        settings=Eagle3Settings(fc_norm=reader.flag("fc_norm")),
    )


def _deepspec_eagle3(reader: _Reader) -> Layout:
    decoder = _one_layer(_decoder(reader, has_qk_norm=True), reader)
    return Layout(
        name="DeepSpec",
        kind="eagle3",
        decoder=decoder,
        capture_points=_points(reader.need("target_layer_ids", list), leaving=True),
        target_hidden_size=decoder.hidden_size,
        num_target_layers=reader.need("num_target_layers", int),
        draft_vocab_size=decoder.vocab_size,
        settings=Eagle3Settings(),
    )


def _deepspec_block(reader: _Reader) -> Layout:
    """DSpark; without its heads it is DeepSpec's DFlash."""
    decoder = _decoder(reader, has_qk_norm=True)
    settings = _heads(reader, block_size=reader.need("block_size", int), drafts_from_anchor=True)
    return Layout(
        name="DeepSpec",
        kind="dspark" if settings.markov_rank or settings.has_confidence else "dflash",
        decoder=decoder,
        capture_points=_points(reader.layer_ids("target_layer_ids"), leaving=True),
        target_hidden_size=decoder.hidden_size,
        num_target_layers=reader.need("num_target_layers", int),
        draft_vocab_size=decoder.vocab_size,
        settings=settings,
    )


def _dflash(reader: _Reader) -> Layout:
    """As DFlash's authors write it: embedding and output layer are the target's."""
    decoder, dflash = _decoder(reader, has_qk_norm=True), reader.section("dflash_config")
    block_size = reader.config.get("block_size") or dflash.need("block_size", int)
    return Layout(
        name="DFlash",
        kind="dflash",
        decoder=decoder,
        capture_points=_points(dflash.layer_ids("target_layer_ids"), leaving=True),
        target_hidden_size=decoder.hidden_size,
        num_target_layers=reader.config.get("num_target_layers"),
        draft_vocab_size=decoder.vocab_size,
        settings=BlockSettings(block_size, dflash.need("mask_token_id", int), drafts_from_anchor=False),
    )


def _speculators(reader: _Reader) -> Layout:
    kind = reader.need("speculators_model_type", str)
    if kind not in KINDS:
        raise reader.refuse("speculators_model_type", f"expected one of {', '.join(KINDS)}")
    layer = reader.section("transformer_layer_config")
    family = layer.need("model_type", str, "qwen3")
    if family not in _DEFAULTS:
        raise layer.refuse("model_type", f"expected layers of {' or '.join(_DEFAULTS)}")
    decoder = _decoder(layer, has_qk_norm=family == "qwen3")
    settings: Eagle3Settings | BlockSettings
    if kind == "eagle3":
        _one_layer(decoder, layer)
        ids = reader.layer_ids("eagle_aux_hidden_state_layer_ids")
        names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        settings = Eagle3Settings(**{name: reader.flag(name) for name in names})
    else:
        ids = reader.layer_ids("aux_hidden_state_layer_ids")
        from_anchor = reader.flag("sample_from_anchor", default=kind == "dspark")
        block_size = reader.need("block_size", int, 8)
        settings = (
            _heads(reader, block_size=block_size, drafts_from_anchor=from_anchor)
            if kind == "dspark"
            else BlockSettings(block_size, reader.need("mask_token_id", int), from_anchor)
        )
    return Layout(
        name="speculators",
        kind=kind,
        decoder=decoder,
        capture_points=_points(ids, leaving=False),
        target_hidden_size=reader.need("target_hidden_size", int, decoder.hidden_size),
        num_target_layers=None,
        draft_vocab_size=reader.need("draft_vocab_size", int, 32000),
        settings=settings,
    )


def _heads(reader: _Reader, *, block_size: int, drafts_from_anchor: bool) -> BlockSettings:
    rank, head = reader.need("markov_rank", int, 0), reader.need("markov_head_type", str, "vanilla")
    if head not in ("vanilla", "gated", "rnn"):
        raise reader.refuse("markov_head_type", "expected vanilla, gated or rnn")
    if reader.flag("enable_confidence_head") and reader.flag("confidence_head_with_markov") and not rank:
        raise reader.refuse("confidence_head_with_markov", "expected a Markov head, markov_rank is 0")
    return BlockSettings(
        block_size=block_size,
        mask_token_id=reader.need("mask_token_id", int),
        drafts_from_anchor=drafts_from_anchor,
        markov_rank=rank,
        markov_head=head,
        has_confidence=reader.flag("enable_confidence_head"),
        confidence_reads_markov=reader.flag("confidence_head_with_markov"),
    )
