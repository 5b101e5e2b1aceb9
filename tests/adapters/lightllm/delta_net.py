"""The gated delta rule from its equations, one token after another: the reference of LightLLM's kernels.

Yang et al., Gated Delta Networks: Improving Mamba2 with Delta Rule, 2024.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch


class DeltaNet:
    """One layer of a gated delta net: LightLLM's caches, and beside them each request's history kept in plain torch."""

    key_heads, value_heads, dim, width = 1, 2, 16, 4

    def __init__(self, requests: int, steps: int, generator: torch.Generator) -> None:
        keys, values = self.key_heads * self.dim, self.value_heads * self.dim
        self.channels = 2 * keys + values
        self.input_size = self.channels + values + 2 * self.value_heads
        self.config = {
            "linear_num_value_heads": self.value_heads,
            "linear_num_key_heads": self.key_heads,
            "linear_key_head_dim": self.dim,
            "linear_value_head_dim": self.dim,
            "linear_conv_kernel_dim": self.width,
            "hidden_act": "silu",
        }
        self.filter = torch.randn(self.channels, self.width, generator=generator)
        self.decay, self.shift = torch.randn(2, self.value_heads, generator=generator)
        self.layer_weight = SimpleNamespace(
            linear_conv1d=SimpleNamespace(mm_param=SimpleNamespace(weight=self.filter), bias=None),
            linear_A_log=SimpleNamespace(weight=self.decay),
            linear_dt_bias=SimpleNamespace(weight=self.shift),
        )
        self.conv_states = torch.zeros(requests, self.channels, self.width - 1 + steps)
        self.ssm_states = torch.zeros(requests * (1 + steps), self.value_heads, self.dim, self.dim)
        self.conv_states[:, :, : self.width - 1] = torch.randn(
            requests, self.channels, self.width - 1, generator=generator
        )
        self.ssm_states[:: 1 + steps] = torch.randn(requests, self.value_heads, self.dim, self.dim, generator=generator)
        self.windows = [state[:, : self.width - 1].T.clone() for state in self.conv_states]
        self.memories = list(self.ssm_states[:: 1 + steps].clone())

    def advance(self, request: int, rows: torch.Tensor, accepted: int) -> torch.Tensor:
        """What the rows give, [rows, value heads, dim], from the request's history, to which the accepted are added."""
        window, memory, out = self.windows[request], self.memories[request], []
        values = self.value_heads * self.dim
        for number, row in enumerate(rows):
            mixed, _, b, a = torch.split(row, [self.channels, values, self.value_heads, self.value_heads])
            window = torch.cat([window, mixed[None]])[-self.width :]
            mixed = torch.nn.functional.silu((window.T * self.filter).sum(dim=1))
            q, k, v = torch.split(mixed, [self.key_heads * self.dim, self.key_heads * self.dim, values])
            q, k = (part / (part.square().sum() + 1e-6).sqrt() for part in (q, k))
            gate = -self.decay.exp() * torch.nn.functional.softplus(a + self.shift)
            memory = memory * gate.exp()[:, None, None]
            error = v.view(self.value_heads, self.dim) - torch.einsum("hkv,k->hv", memory, k)
            memory = memory + torch.einsum("k,hv->hkv", k, error * b.sigmoid()[:, None])
            out.append(torch.einsum("hkv,k->hv", memory, q * self.dim**-0.5))
            if number + 1 == accepted:
                self.windows[request], self.memories[request] = window[1:], memory
        return torch.stack(out)
