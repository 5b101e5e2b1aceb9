"""Rotary positions as complex numbers: turning a pair of neighbours is one product."""

import torch


def rotations(head_dim: int, base: float, num_positions: int) -> torch.Tensor:
    """complex64 ``[num_positions, head_dim / 2]``: by how much each pair of a head is turned at each position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), 1.0 / base**exponents)
    return torch.polar(torch.ones_like(angles), angles)
