"""Attention backends of drafters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightllm.common.basemodel.attention.base_att import BaseAttBackend


@contextmanager
def own_attention_backends() -> Iterator[None]:
    """While drafters are built, every model gets attention backends of its own.

    LightLLM keeps one object per class and initialises it anew for each model, so that a drafter would leave the
    target's with its own head counts and buffers.
    """
    shared = BaseAttBackend._instances  # noqa: SLF001 - there is no other way in
    BaseAttBackend._instances = _Forgetful()  # noqa: SLF001
    try:
        yield
    finally:
        BaseAttBackend._instances = shared  # noqa: SLF001


class _Forgetful(dict[type, Any]):
    """Holds what was put in last, and admits to nothing."""

    def __contains__(self, key: object) -> bool:
        return False
