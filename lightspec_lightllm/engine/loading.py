"""From a GGUF file to a model that is ready to serve."""

from pathlib import Path

import torch

from lightspec_lightllm.engine.checkpoint import open_checkpoint
from lightspec_lightllm.engine.fetch import ProgressListener, default_model_path
from lightspec_lightllm.engine.model import Model
from lightspec_lightllm.engine.options import WeightFormat
from lightspec_lightllm.engine.tokenizer import Tokenizer


def load_model(
    path: Path | None = None, weights: WeightFormat = "float16", progress: ProgressListener | None = None
) -> tuple[Model, Tokenizer]:
    """Model and tokenizer of a GGUF file; None is the default model, downloaded once.

    The first call for a file converts it, which takes seconds; later calls read the converted form.
    """
    checkpoint = open_checkpoint(default_model_path(progress) if path is None else path, progress)
    model = Model(checkpoint.config, lambda name: torch.from_numpy(checkpoint.tensor(name)), weights)
    return model, Tokenizer(checkpoint.tokenizer)
