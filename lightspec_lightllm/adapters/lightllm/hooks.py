"""How LightLLM is extended without changing its files: functions and classes replaced when their module is imported.

A hook replaces one attribute by ``wrap(original)``. Replacements decide when they are called whether dynamic mode is
on (`options.current`); while it is off they do exactly what the original does.

::

    install()      compare every hook with the source -> one mismatch: HostError, and nothing is touched
                   a finder on sys.meta_path: a module that has hooks gets them right after it has run
    installed()    what has been replaced in this process so far
    uninstall()    all originals back
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from lightspec_lightllm.adapters.lightllm import signatures
from lightspec_lightllm.adapters.lightllm.signatures import Expectation
from lightspec_lightllm.errors import HostError

_OWN = "lightspec_lightllm.adapters.lightllm"


@dataclass(frozen=True, slots=True)
class Hook:
    """One replacement in LightLLM.

    Attributes:
        target: what is replaced: ``module:function``, ``module:Class.method`` or any global of a module.
        wrap: ``module:function`` of this package, imported when the target is; takes the original and returns what
            replaces it. Of a static method it takes and returns the function.
        signature: the target's, as `signatures` writes it; None for what is no function, or is generated.
        why: what it is for.
    """

    target: str
    wrap: str
    signature: str | None
    why: str

    @property
    def expectation(self) -> Expectation:
        """What the target must look like; of a method that no source holds, that its class is there."""
        generated = self.signature is None and self.target.endswith(".__init__")
        return Expectation(self.target.removesuffix(".__init__") if generated else self.target, self.signature)

    @property
    def module(self) -> str:
        """Dotted name of the target's module."""
        return self.target.partition(":")[0]


HOOKS: tuple[Hook, ...] = (
    Hook(
        "lightllm.server.api_cli:add_cli_args",
        f"{_OWN}.launch:wrap_add_cli_args",
        "(parser)",
        "--dynamic_mtp and --lightspec_config",
    ),
    Hook(
        "lightllm.server.core.objs.start_args_type:StartArgs.__init__",
        f"{_OWN}.launch:wrap_start_args",
        None,
        "start arguments take no others; the resolved configuration travels with them to every process",
    ),
    Hook(
        "lightllm.utils.start_utils:SubmoduleManager.start_submodule_processes",
        f"{_OWN}.launch:wrap_start_submodule_processes",
        "(self, start_funcs=[], start_args=[])",
        "hooks in the metric server and the router",
    ),
    Hook(
        "lightllm.server.router.model_infer.model_rpc:_init_env",
        f"{_OWN}.launch:wrap_init_env",
        "(args, rank, rank_in_node, node_world_size, info_queue, socket_path, success_event)",
        "hooks in every model rank",
    ),
    Hook(
        "lightllm.server.router.model_infer.model_rpc:ChunkedPrefillBackend",
        f"{_OWN}.launch:wrap_backend",
        None,
        "the backend that plans; only here is it chosen",
    ),
    Hook(
        "lightllm.common.basemodel.cuda_graph:CudaGraph.gen_cuda_graph_batch_sizes",
        f"{_OWN}.graphs:wrap_batch_sizes",
        "@staticmethod (max_batch_size=8, tp_world_size=1)",
        "a few dozen sizes of any number of rows, instead of every multiple of 1 + K",
    ),
    Hook(
        "lightllm.common.basemodel.basemodel:TpPartBaseModel._verify_must",
        f"{_OWN}.graphs:wrap_verify_must",
        "(self)",
        "bounds the rows that graphs and attention buffers are made for",
    ),
    Hook(
        "lightllm.common.basemodel.basemodel:TpPartBaseModel._init_cudagraph",
        f"{_OWN}.drafters.capture:wrap_init_cudagraph",
        "(self)",
        "hidden states of the target for drafters that read them, from its first graph on",
    ),
    Hook(
        "lightllm.common.kv_cache_mem_manager.mem_manager:MemoryManager.profile_size",
        f"{_OWN}.drafters.memory:wrap_profile_size",
        "(self, mem_fraction)",
        "room for the weights and the KV of drafters that this package loads",
    ),
    Hook(
        "lightllm.utils.envs_utils:get_added_mtp_kv_layer_num",
        f"{_OWN}.drafters.memory:wrap_added_layers",
        "()",
        "their KV is not among the target's layers",
    ),
    Hook(
        "lightllm.common.basemodel.basemodel:TpPartBaseModel._full_att_decode_autotune",
        f"{_OWN}.graphs:wrap_decode_autotune",
        "(self)",
        "it times shapes that no dynamic round has",
    ),
    Hook(
        "lightllm.common.basemodel.attention.fa3.fp:Fa3AttBackend.create_att_decode_state",
        f"{_OWN}.attention.fa3:wrap_create_state",
        "(self, infer_state)",
        "requests with different numbers of rows on FlashAttention 3",
    ),
    Hook(
        "lightllm.common.basemodel.attention.fa3.mla:MlaFa3AttBackend.create_att_decode_state",
        f"{_OWN}.attention.fa3:wrap_create_state",
        "(self, infer_state)",
        "the same for MLA",
    ),
    Hook(
        "lightllm.common.basemodel.attention.fa3.fp8:Fp8Fa3AttBackend.create_att_decode_state",
        f"{_OWN}.attention.fa3:wrap_create_fp8_state",
        "(self, infer_state)",
        "the same for an fp8 cache",
    ),
    Hook(
        "lightllm.common.basemodel.attention.linear.gdn:LinearAttBackend.create_att_decode_state",
        f"{_OWN}.attention.linear:wrap_create_state",
        "(self, infer_state)",
        "the same for linear attention",
    ),
    Hook(
        "lightllm.server.metrics.metrics:Monitor.init_metrics",
        f"{_OWN}.exposition:wrap_init_metrics",
        "(self, args)",
        "round metrics on /metrics",
    ),
    Hook(
        "lightllm.server.core.objs.req:ChunkedPrefillReq.get_decode_need_tokens",
        f"{_OWN}.router:wrap_decode_need",
        "(self)",
        "the router's estimate of what a decode round takes",
    ),
    Hook(
        "lightllm.server.router.stats:RouterStatics.log_str",
        f"{_OWN}.router:wrap_log_str",
        "(self)",
        "the router's status line",
    ),
)
"""In order of installation; two hooks of one target nest, the later outside."""


def install() -> None:
    """Extend LightLLM in this process, what is imported already and what will be. A second call does nothing.

    Raises:
        HostError: LightLLM is missing or a target is not as expected; nothing has been touched then.
    """
    if _finder in sys.meta_path:
        return
    package = signatures.package_folder()
    if wrong := signatures.compare(package, [hook.expectation for hook in HOOKS]):
        raise HostError(
            f"the LightLLM in {package} does not fit, expected commit {signatures.COMMIT} or one with the same "
            f"signatures: {'; '.join(map(str, wrong))}. Nothing was changed; `lightspec doctor` lists the rest"
        )
    sys.meta_path.insert(0, _finder)
    for name in dict.fromkeys(hook.module for hook in HOOKS):
        if name in sys.modules:
            _extend(sys.modules[name])


def uninstall() -> None:
    """Put every original back and leave later imports alone."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    while _replacements:
        _replacements.pop().undo()


def installed() -> tuple[str, ...]:
    """The targets replaced in this process so far, in the order in which they were."""
    return tuple(dict.fromkeys(replacement.target for replacement in _replacements))


def original(target: str) -> Any:
    """What a target was before any hook."""
    module, _, name = target.partition(":")
    found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    return next((r.original for r in _replacements if r.target == target), found)


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    target: str
    owner: Any
    name: str
    original: Any

    def undo(self) -> None:
        setattr(self.owner, self.name, self.original)


_replacements: list[_Replacement] = []


def _extend(module: ModuleType) -> None:
    """Apply a module's hooks. If one fails, all of this process are undone: never half of them."""
    try:
        for hook in HOOKS:
            if hook.module == module.__name__:
                _apply(hook, module)
    except Exception:
        uninstall()
        raise


def _apply(hook: Hook, module: ModuleType) -> None:
    *path, name = hook.target.partition(":")[2].split(".")
    owner = functools.reduce(getattr, path, module)
    before = vars(owner)[name]
    wrap = _resolve(hook)
    static = isinstance(before, staticmethod)
    after = staticmethod(wrap(before.__func__)) if static else wrap(before)
    _replace(hook.target, owner, name, before, after)
    if path or getattr(before, "__module__", None) != module.__name__:
        return  # a member of a class; or a name that the module itself imports is replaced there and nowhere else
    for importer in [m for key, m in sys.modules.items() if key.startswith("lightllm.") and m is not module]:
        for alias in [key for key, value in vars(importer).items() if value is before]:
            _replace(hook.target, importer, alias, before, after)  # imported by name before the hook came


def _replace(target: str, owner: Any, name: str, before: Any, after: Any) -> None:
    _replacements.append(_Replacement(target, owner, name, before))
    setattr(owner, name, after)


def _resolve(hook: Hook) -> Callable[[Any], Any]:
    module, _, name = hook.wrap.partition(":")
    try:
        wrap: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HostError(f"the hook of {hook.target} needs {hook.wrap}, which cannot be had: {error}") from error
    return wrap


class _Finder:
    """Lets the other finders find a module that has hooks, and extends it right after it has run."""

    def __init__(self) -> None:
        self._busy = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if getattr(self._busy, "name", None) == name or all(name != hook.module for hook in HOOKS):
            return None
        self._busy.name = name  # a finder of the same kind would ask this one again
        try:
            spec = _first_spec(name, path, target, but=self)
        finally:
            self._busy.name = None
        if spec is not None and spec.loader is not None:
            _extend_after(spec)
        return spec


def _first_spec(name: str, path: Sequence[str] | None, target: ModuleType | None, *, but: _Finder) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        if finder is not but and (spec := finder.find_spec(name, path, target)) is not None:
            return spec
    return None


def _extend_after(spec: ModuleSpec) -> None:
    """Make a spec's loader extend the module once it has run. The loader keeps its type: sources are read from it."""
    loader: Any = spec.loader
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = run
        run(module)
        _extend(module)

    loader.exec_module = exec_module


_finder = _Finder()
