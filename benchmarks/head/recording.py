"""What the target wrote and thought: training and evaluation records, and the shards they are stored in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Recording:
    """One response of the target.

    tokens  int32    [n]            prompt, then response
    hidden  float16  [n - 1, C * D] captured streams of positions 0..n-2
    """

    kind: str
    temperature: float
    prompt_length: int
    tokens: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]

    @property
    def response_length(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self.prompt_length


def save_shard(path: Path, recordings: Sequence[Recording]) -> None:
    """Write a shard; it appears under its name only when it is whole, so that training may read a growing folder."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        kinds=np.array([each.kind for each in recordings]),
        temperatures=np.array([each.temperature for each in recordings]),
        prompt_lengths=np.array([each.prompt_length for each in recordings]),
        lengths=np.array([len(each.tokens) for each in recordings]),
        tokens=np.concatenate([each.tokens for each in recordings]),
        hidden=np.concatenate([each.hidden for each in recordings]),
    )
    partial.rename(path)


def load_shard(path: Path) -> list[Recording]:
    """Read a shard back."""
    with np.load(path, allow_pickle=False) as archive:
        kinds, temperatures = archive["kinds"].tolist(), archive["temperatures"].tolist()
        prompts, lengths = archive["prompt_lengths"].tolist(), archive["lengths"].tolist()
        tokens, hidden = archive["tokens"], archive["hidden"]
    recordings: list[Recording] = []
    token, row = 0, 0
    for kind, temperature, prompt, length in zip(kinds, temperatures, prompts, lengths, strict=True):
        end, last = token + length, row + length - 1
        recordings.append(Recording(kind, temperature, prompt, tokens[token:end], hidden[row:last]))
        token, row = end, last
    return recordings


def shards(folder: Path) -> list[Path]:
    """The finished shards of a folder, in a fixed order."""
    return sorted(path for path in folder.glob("*.npz") if ".partial" not in path.name)
