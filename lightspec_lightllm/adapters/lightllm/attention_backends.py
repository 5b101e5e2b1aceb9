"""Attention backends of drafters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightllm.common.basemodel.attention.base_att import BaseAttBackend

PAGE_TABLES = "_shared_page_table_buffer"
"""FlashAttention 3's page tables: large, without a trace of head counts, and written anew before each use."""


@contextmanager
def own_attention_backends(*, share_page_tables: bool) -> Iterator[None]:
    """While drafters are built, every model gets attention backends of its own.

    LightLLM keeps one object per class and initialises it anew for each model, so that a drafter would leave the
    target's with its own head counts and buffers. Page tables stay shared, as LightLLM means them to be, unless a
    drafter's batches may be larger than the target's.
    """
    shared = BaseAttBackend._instances  # noqa: SLF001 - there is no other way in
    BaseAttBackend._instances = _OwnInstances(shared if share_page_tables else {})  # noqa: SLF001
    try:
        yield
    finally:
        BaseAttBackend._instances = shared  # noqa: SLF001


class _OwnInstances(dict[type, Any]):
    """One object per class and model: admits to what it holds only while the model that it is for is being built."""

    def __init__(self, shared: dict[type, Any]) -> None:
        super().__init__()
        self._shared = shared

    def __contains__(self, kind: object) -> bool:
        instance = self.get(kind)  # type: ignore[call-overload] # as LightLLM asks, with a class
        # A model looks for its back ends before it captures graphs, and sets this attribute when it does.
        return instance is not None and not hasattr(getattr(instance, "model", None), "graph")

    def __setitem__(self, kind: type, instance: Any) -> None:
        page_tables = getattr(self._shared.get(kind), PAGE_TABLES, None)
        if page_tables is not None:
            setattr(instance, PAGE_TABLES, page_tables)
        super().__setitem__(kind, instance)
