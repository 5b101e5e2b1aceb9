"""Muon for the head's matrices (momentum, orthogonalised by Newton-Schulz steps), Adam for its norms.

Muon: https://kellerjordan.github.io/posts/muon/; updates are scaled to the size of Adam's
(https://arxiv.org/abs/2502.16982), so one learning rate serves both.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn


class MatrixOptimizer:
    """Call `step` after `backward`; gradients are cleared."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, momentum: float = 0.95, decay: float = 0.05) -> None:
        self._parameters = list(parameters)
        self._momentum = momentum
        self._decay = decay
        self._first = [torch.zeros_like(each) for each in self._parameters]
        self._second = [torch.zeros_like(each) for each in self._parameters]
        self._steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter with learning rate ``rate``."""
        self._steps += 1
        for parameter, first, second in zip(self._parameters, self._first, self._second, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            if parameter.ndim == 2:
                first.mul_(self._momentum).add_(gradient)
                update = orthogonal(gradient + self._momentum * first) * (0.2 * math.sqrt(max(parameter.shape)))
                parameter.mul_(1 - rate * self._decay)
            else:
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient.square(), 0.05)
                scale = (second / (1 - 0.95**self._steps)).sqrt_().add_(1e-8)
                update = first / (1 - 0.9**self._steps) / scale
            parameter.sub_(rate * update)
            parameter.grad = None


def orthogonal(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Roughly the nearest matrix with all singular values 1, by a quintic Newton-Schulz iteration."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / float(torch.linalg.matrix_norm(wide) + 1e-7)
    for _ in range(iterations):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
