"""Requests as drafters see them, and a random head small enough to check by hand."""

from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.head.network import DraftHead, HeadShape
from lightspec_lightllm.drafters.checkpoint import HeadGeometry, HeadWeights

VOCAB = 50
SHAPE = HeadShape(hidden_size=24, ffn_size=40, head_dim=8)
GEOMETRY = HeadGeometry(
    target="a random model",
    capture_layers=(1, 2, 4),
    num_heads=6,
    num_kv_heads=2,
    rope_theta=1e4,
    norm_eps=1e-5,
)
STREAMS = len(GEOMETRY.capture_layers) * SHAPE.hidden_size


@dataclass
class FakeRequest:
    """A request with nothing but what `SequenceView` asks for."""

    request_id: int
    tokens: list[int]
    prompt_length: int = field(default=0)

    def __post_init__(self) -> None:
        self.prompt_length = self.prompt_length or len(self.tokens)


@dataclass(frozen=True)
class TinyHead:
    """A random head and the target's embedding that goes with it."""

    module: DraftHead
    weights: HeadWeights
    embedding: torch.Tensor
    draft_vocab: torch.Tensor


def tiny_head(seed: int = 0) -> TinyHead:
    torch.manual_seed(seed)
    module = DraftHead(GEOMETRY, SHAPE)
    with torch.no_grad():
        for parameter in module.parameters():
            # Rounded to half precision, so that the exported weights are exactly the module's.
            noise = torch.randn_like(parameter) * 0.2 + (1.0 if parameter.ndim == 1 else 0.0)
            parameter.copy_(noise.half().float())
    draft_vocab = torch.arange(0, VOCAB, 2)
    embedding = torch.randn(VOCAB, SHAPE.hidden_size)
    return TinyHead(module, module.export(draft_vocab), embedding, draft_vocab)


def streams_for(request: FakeRequest, length: int) -> torch.Tensor:
    """Made-up hidden states ``[length, C * D]``: a function of the request and the position, like the target's."""
    rng = np.random.default_rng(request.request_id)
    return torch.from_numpy(rng.standard_normal((512, STREAMS)).astype(np.float32))[:length]
