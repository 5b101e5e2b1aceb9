"""The draft head's weights: names, shapes, and the file they ship in.

A checkpoint is one uncompressed ``.npz`` archive of float16 arrays plus a small JSON header. The rows of the output
projection are not in it: they are the target's own embedding rows, picked by ``draft_vocab``.
"""

import json
import zipfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.errors import ModelError

SHIPPED = Path(__file__).parent / "weights" / "smollm2-135m-instruct.npz"
"""The head for SmolLM2-135M-Instruct that comes with the package."""

Float16Array = npt.NDArray[np.float16]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class HeadGeometry:
    """Everything about a head that its arrays do not say."""

    target: str
    """The model it was trained for."""
    capture_layers: tuple[int, ...]
    """Residual streams it reads, in the order of ``fuse``'s columns; see `Drafter.capture_layers`."""
    num_heads: int
    num_kv_heads: int
    rope_theta: float
    norm_eps: float
    confidence_temperature: float = 1.0
    """Draft logits are divided by this before the confidence is read off (never before the argmax)."""


@dataclass(frozen=True)
class HeadWeights:
    """One decoder layer between a fusion of hidden states and the target's own output rows.

    With D the hidden size, C captured layers, H and G query and key/value heads of size E, F the feed-forward width
    and V' the draft vocabulary:
    """

    geometry: HeadGeometry
    draft_vocab: Int32Array  # [V']          target token ids, ascending
    fuse: Float16Array  # [D, C * D]         captured streams -> the layer's hidden input
    embed_norm: Float16Array  # [D]          gain on the token embedding
    hidden_norm: Float16Array  # [D]         gain on the hidden input
    qkv: Float16Array  # [(H + 2G) * E, 2D]  rows: queries, keys, values; columns: embedding, hidden
    out: Float16Array  # [D, H * E]
    ffn_norm: Float16Array  # [D]
    gate_up: Float16Array  # [2F, D]         rows: gate, up
    down: Float16Array  # [D, F]
    output_norm: Float16Array  # [D]

    def __post_init__(self) -> None:
        """Raise ModelError unless all shapes fit each other."""
        hidden, queries = self.out.shape
        streams = len(self.geometry.capture_layers)
        head_dim = queries // self.geometry.num_heads
        width = self.down.shape[1]
        expected = {
            "fuse": (hidden, streams * hidden),
            "qkv": ((self.geometry.num_heads + 2 * self.geometry.num_kv_heads) * head_dim, 2 * hidden),
            "gate_up": (2 * width, hidden),
            "down": (hidden, width),
            **dict.fromkeys(("embed_norm", "hidden_norm", "ffn_norm", "output_norm"), (hidden,)),
        }
        for name, shape in expected.items():
            found = getattr(self, name).shape
            if found != shape:
                msg = f"draft head: expected {name} of shape {shape}, found {found}; the checkpoint is damaged"
                raise ModelError(msg)

    @property
    def hidden_size(self) -> int:
        """D, the target's hidden size."""
        return int(self.out.shape[0])

    @property
    def head_dim(self) -> int:
        """E, the size of one attention head."""
        return int(self.out.shape[1]) // self.geometry.num_heads

    @property
    def num_parameters(self) -> int:
        """Trained numbers in the file (the target's output rows are not counted)."""
        return sum(getattr(self, name).size for name in ARRAYS if name != "draft_vocab")

    def save(self, path: Path) -> None:
        """Write the checkpoint; the parent folder must exist."""
        header = np.frombuffer(json.dumps(asdict(self.geometry)).encode(), dtype=np.uint8)
        np.savez(path, header=header, **{name: getattr(self, name) for name in ARRAYS})


ARRAYS = tuple(field.name for field in fields(HeadWeights) if field.name != "geometry")


def load_weights(path: Path = SHIPPED) -> HeadWeights:
    """Read a checkpoint. ModelError when the file is missing, is no checkpoint, or its shapes do not fit."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            arrays = {name: archive[name] for name in ARRAYS}
        geometry = HeadGeometry(**{**header, "capture_layers": tuple(header["capture_layers"])})
    except FileNotFoundError as error:
        msg = f"expected draft head weights at {path}, found no file; give the path of a checkpoint or reinstall"
        raise ModelError(msg) from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        msg = f"expected draft head weights at {path}, but the file cannot be read as such: {error}"
        raise ModelError(msg) from error
    return HeadWeights(geometry=geometry, **arrays)
