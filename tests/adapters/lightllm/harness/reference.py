"""Greedy text by transformers, in a process without the virtual device, under which its rotary embedding is wrong.

Run as a module it reads lines ``{"model", "prompt", "length"}`` and answers each with ``{"tokens", "margin"}``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import Any

ROOT_MODULE = "tests.adapters.lightllm.harness.reference"


@dataclass(frozen=True)
class Text:
    """``margin``: the least by which a chosen logit exceeded the next one; below it, arithmetic may decide."""

    tokens: tuple[int, ...]
    margin: float


class Reference:
    """The process, and the texts that it gave already."""

    def __init__(self, root: str, environment: dict[str, str]) -> None:
        self._texts: dict[tuple[str, tuple[int, ...], int], Text] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", ROOT_MODULE],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def text(self, model: str, prompt: tuple[int, ...], length: int) -> Text:
        """The ``length`` tokens after a prompt."""
        key = (model, prompt, length)
        if key not in self._texts:
            assert self._process.stdin is not None, "a pipe was asked for"
            assert self._process.stdout is not None, "a pipe was asked for"
            self._process.stdin.write(json.dumps({"model": model, "prompt": prompt, "length": length}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"the reference process ended with exit code {self._process.wait()}")
            answer = json.loads(line)
            self._texts[key] = Text(tuple(answer["tokens"]), answer["margin"])
        return self._texts[key]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()  # closes the pipes, too


def serve() -> None:
    # See virtual_cuda: this module of a torchvision for CUDA does not load beside a CPU torch.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[str, Any] = {}
    for line in sys.stdin:
        wanted = json.loads(line)
        if wanted["model"] not in models:
            models[wanted["model"]] = AutoModelForCausalLM.from_pretrained(
                wanted["model"], dtype=torch.float32, attn_implementation="eager"
            ).eval()
        tokens, margin = list(wanted["prompt"]), float("inf")
        with torch.no_grad():
            for _ in range(wanted["length"]):
                top = models[wanted["model"]](torch.tensor([tokens])).logits[0, -1].topk(2)
                margin = min(margin, float(top.values[0] - top.values[1]))
                tokens.append(int(top.indices[0]))
        answer = {"tokens": tokens[len(wanted["prompt"]) :], "margin": margin}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
