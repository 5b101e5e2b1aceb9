"""For PYTHONPATH: every Python process of a server gets the virtual device once it imports LightLLM."""

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any


class DeviceFirst(importlib.abc.MetaPathFinder):
    """Finds nothing; installs the device when ``lightllm`` is looked for, and is gone."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        if fullname == "lightllm":
            sys.meta_path.remove(self)
            from tests.adapters.lightllm.harness import virtual_cuda

            virtual_cuda.install()


sys.meta_path.insert(0, DeviceFirst())
