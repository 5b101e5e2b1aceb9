"""Hidden states of the target's layers, copied while its forwards run, in CUDA graphs too.

A captured state is the residual stream that enters a layer. LightLLM adds to that stream in place, so it is copied
before the layer runs. Rows of a decode go to one buffer that captured graphs write to; larger batches, which run
without a graph, and prefills get a buffer of their own. All of it is read on the stream of the forwards, before the
target's next one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightspec_lightllm.adapters.lightllm import options

Forward = Callable[[torch.Tensor, Any, Any], torch.Tensor]

ATTRIBUTE = "lightspec_capture"
"""Of a target, where its `HiddenCapture` is."""


class HiddenCapture:
    """Copies what enters the layers ``points`` of a target, of hidden size H, side by side.

    Args:
        max_rows: R, rows of the largest captured graph.
    """

    def __init__(self, target: Any, points: Sequence[int], max_rows: int) -> None:
        self._width = int(target.config["hidden_size"])
        self._points = tuple(points)
        self._dtype = target.data_type
        self._fixed = self._empty(max_rows)
        self._large = self._prefilled = self._fixed[:0]
        for place, point in enumerate(self._points):
            layer = target.layers_infer[point]
            layer.token_forward = self._copying(layer.token_forward, place, self._decode_buffer)
            layer.context_forward = self._copying(layer.context_forward, place, self._prefill_buffer)

    def decoded(self, num_rows: int) -> torch.Tensor:
        """float[B, P * H]: of the rows of the last decode, valid until the next one."""
        buffer = self._fixed if num_rows <= len(self._fixed) else self._large
        return buffer[:num_rows]

    def take_prefilled(self) -> torch.Tensor:
        """float[T, P * H]: of the tokens of the last prefill, given once, so that the memory can go."""
        taken, self._prefilled = self._prefilled, self._fixed[:0]
        return taken

    def _copying(self, forward: Forward, place: int, buffer_of: Callable[[int, int], torch.Tensor]) -> Forward:
        columns = slice(place * self._width, (place + 1) * self._width)

        @functools.wraps(forward)
        def copying(entering: torch.Tensor, infer_state: Any, layer_weight: Any) -> torch.Tensor:
            rows = entering.view(-1, self._width)
            buffer_of(len(rows), place)[:, columns].copy_(rows)
            return forward(entering, infer_state, layer_weight)

        return copying

    def _decode_buffer(self, num_rows: int, place: int) -> torch.Tensor:
        if num_rows > len(self._fixed) and place == 0:
            self._large = self._empty(num_rows)
        return self.decoded(num_rows)

    def _prefill_buffer(self, num_tokens: int, place: int) -> torch.Tensor:
        if place == 0:
            self._prefilled = self._empty(num_tokens)
        return self._prefilled

    def _empty(self, num_rows: int) -> torch.Tensor:
        return torch.empty((num_rows, len(self._points) * self._width), dtype=self._dtype, device="cuda")


def wrap_init_cudagraph(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """For `TpPartBaseModel._init_cudagraph`: the target's states are captured from its first graph on."""

    @functools.wraps(original)
    def _init_cudagraph(model: Any) -> None:
        config = options.current()
        if config is not None and config.drafter is not None and not getattr(model, "is_mtp_draft_model", False):
            from lightspec_lightllm.adapters.lightllm.drafters.loading import served_checkpoint

            checkpoint, target = served_checkpoint(model.args, config)
            points = checkpoint.capture_points(target)
            setattr(model, ATTRIBUTE, HiddenCapture(model, points, model.graph_max_batch_size))
        original(model)

    return _init_cudagraph
