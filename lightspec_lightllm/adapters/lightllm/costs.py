"""Cost tables of a LightLLM server: measured once per setup, kept in the cache, the same on all ranks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.engine.fetch import cache_dir
from lightspec_lightllm.errors import ConfigError, CostTableError
from lightspec_lightllm.machine import version_of
from lightspec_lightllm.planner import CostModel, DrafterKind
from lightspec_lightllm.planner.types import FloatArray

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.lightllm.measuring import Grid, Times

logger = logging.getLogger(__name__)

FORMAT = "lightspec-costs/3"


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a table was measured for; a table of any other key is foreign.

    Attributes:
        model: SHA-256 of the target's ``config.json``.
        drafters: the same of each draft folder, once per model.
        mtp_mode: as it was given.
        max_draft_steps: K.
        device: name of the GPU.
        dtype: of activations, with the quantization of weights and of the KV cache.
        tp: ranks of the target.
        attention: decode back ends of target and drafter.
        graphs: whether forwards are captured.
        rows: sizes of the target's batches.
        draft_rows: the same of the drafter's.
        contexts: tokens of context.
        versions: of what the forwards run in.
    """

    model: str
    drafters: tuple[str, ...]
    mtp_mode: str
    max_draft_steps: int
    device: str
    dtype: str
    tp: int
    attention: tuple[str, ...]
    graphs: bool
    rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    versions: dict[str, str | None]

    @classmethod
    def of(cls, backend: Any, grid: Grid, config: LightLLMConfig) -> CostKey:
        """The key of a LightLLM backend whose models are loaded."""
        import torch

        args, models = backend.args, [backend.model, *backend.draft_models]
        return cls(
            model=config_sha256(Path(args.model_dir)),
            drafters=tuple(config_sha256(Path(folder)) for folder in args.mtp_draft_model_dir or ()),
            mtp_mode=config.drafter or args.mtp_mode,
            max_draft_steps=config.planner.max_draft_steps,
            device=torch.cuda.get_device_name(),
            dtype=f"{args.data_type}, weights {args.quant_type}, kv {args.llm_kv_type}",
            tp=backend.world_size,
            attention=tuple(type(model.decode_att_backend).__name__ for model in models),
            graphs=backend.model.graph is not None,
            rows=grid.rows,
            draft_rows=grid.draft_rows,
            contexts=grid.contexts,
            versions=versions(),
        )

    @property
    def path(self) -> Path:
        """Where its table is kept; one of another format is another file."""
        content = json.dumps([FORMAT, asdict(self)], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cache_dir() / "costs" / "lightllm" / f"{digest}.json"


@dataclass(frozen=True, slots=True)
class StoredCosts:
    """A table as a file holds it.

    Attributes:
        format: `FORMAT`.
        key: what it was measured for.
        costs: the table.
    """

    format: str
    key: CostKey
    costs: CostTables


def versions() -> dict[str, str | None]:
    """Of what forwards run in; another one may be faster."""
    return {name: version_of(name) for name in ("torch", "triton", "lightllm", "flashinfer-python", "sgl-kernel")}


def config_sha256(folder: Path) -> str:
    """Of a model's ``config.json``: the shape of its layers, which is what their time depends on.

    Raises:
        CostTableError: it cannot be read.
    """
    try:
        return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    except OSError as error:
        raise CostTableError(f"costs: expected a config.json in {folder}: {error}") from None


def load_or_measure(backend: Any, config: LightLLMConfig, drafter_kind: DrafterKind) -> CostModel:
    """The cost model of a LightLLM backend: read from ``costs.path`` or the cache, or measured and written there.

    To be called on all ranks at once, when graphs are captured and no request is served yet. All ranks measure
    together and take the slowest time of each shape, and all of them read a table or none does.

    Raises:
        CostTableError: the stored table is damaged or was measured for something else, here or on another rank.
    """
    from lightspec_lightllm.adapters.lightllm.measuring import Grid, Times

    steps = config.planner.max_draft_steps
    drafts = [] if drafter_kind == "free" else backend.draft_models
    grid = Grid.of(backend.model, drafts, config.costs, steps)
    key = CostKey.of(backend, grid, config)
    path = Path(config.costs.path) if config.costs.path is not None else key.path
    stored, problem = None, ""
    if config.costs.path is not None or path.exists():
        try:
            stored = read(path, key)
        except CostTableError as error:
            problem = str(error)
    smallest, _ = _over_ranks(np.array([-1.0 if problem else float(stored is not None)]))
    if smallest[0] < 0:
        raise CostTableError(problem or "the cost table of another rank cannot be used; its log says why")
    if stored is not None and smallest[0] == 1:
        _check_same(stored)
        return stored.model()
    _, slowest = _over_ranks(_measure(backend, grid, config, drafts).flat())
    tables = tabulate(grid, Times.unflat(grid, slowest), steps, interpolate=not key.graphs)
    if backend.rank_in_node == 0:
        write(key.path, StoredCosts(FORMAT, key, tables))
    return tables.model()


def _measure(backend: Any, grid: Grid, config: LightLLMConfig, drafts: list[Any]) -> Times:
    from lightspec_lightllm.adapters.lightllm.measuring import Measurement

    began = last = time.monotonic()
    log = backend.logger.info  # LightLLM's processes print nothing of other loggers below a warning
    log(
        "measuring what rounds cost: %d target and %d drafter sizes at contexts %s, kept for the next start",
        *(len(grid.rows), len(grid.draft_rows) + len(grid.fill_rows), list(grid.contexts)),
    )

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            log("measuring what rounds cost: %d of %d shapes", done, total)

    times = Measurement(
        backend.model,
        drafts,
        sample=_sampling(backend),
        grid=grid,
        options=config.costs,
        max_draft_steps=config.planner.max_draft_steps,
    ).run(progress)
    log("measured what rounds cost in %.0f s", time.monotonic() - began)
    return times


def _sampling(backend: Any) -> Callable[[Any, Any], object]:
    """Sampling as a round does it for requests without special parameters."""
    from lightspec_lightllm.adapters.lightllm.sampling import Rows

    nobody = np.array([backend.model.req_manager.HOLD_REQUEST_ID], dtype=np.int32)

    def sample(logits: Any, model_input: Any) -> object:
        rows = Rows(model_input.b_req_idx, model_input.b_seq_len, model_input.b_mtp_index)
        return backend.sampler.sample(logits, rows, nobody)

    return sample


def tabulate(grid: Grid, times: Times, max_draft_steps: int, *, interpolate: bool) -> CostTables:
    """The tables of measured times; what rows of a request share is taken out of the target's and priced per request.

    Args:
        interpolate: nothing is padded between two sizes, as where no graphs are captured.
    """
    from lightspec_lightllm.adapters.lightllm.measuring import fit_shared

    per_token = fit_shared(grid, times, max_draft_steps)
    rows, contexts = np.array(grid.rows, dtype=np.float64), np.array(grid.contexts, dtype=np.float64)
    target = np.maximum(times.target - per_token * contexts[:, None] * rows, 0.0)
    draft_rows, columns = _planned_rows(grid, max_draft_steps)
    return CostTables(
        target=_by_context(grid.contexts, grid.rows, target),
        draft=_by_context(grid.contexts, draft_rows, times.draft[:, columns]) if draft_rows else {},
        interpolate=interpolate,
        request_token_ms=per_token,
        max_rows=grid.rows[-1],
        fill=_by_context(grid.contexts, grid.fill_rows, times.fill) if grid.fill_rows else {},
    )


def _planned_rows(grid: Grid, max_draft_steps: int) -> tuple[tuple[int, ...], list[int]]:
    """The drafter's sizes as a planner counts them, and which of the measured ones they are.

    A planner takes K rows per request for a block (`planner.costs.draft_terms`). Where a drafter runs more of them, a
    size stands for K rows of as many requests as it has whole blocks of; the least of several for the same is run.
    """
    if not grid.block_rows:
        return grid.draft_rows, list(range(len(grid.draft_rows)))
    found: dict[int, int] = {}
    for column, rows in enumerate(grid.draft_rows):
        found.setdefault(rows // grid.block_rows * max_draft_steps, column)
    found.pop(0, None)
    return tuple(found), list(found.values())


def _by_context(
    contexts: tuple[int, ...], rows: tuple[int, ...], ms: FloatArray
) -> dict[int, float | dict[int, float]]:
    steady = np.maximum.accumulate(ms, axis=1)
    lines = [dict(zip(rows, line, strict=True)) for line in steady.tolist()]
    return dict(zip(contexts, lines, strict=True))


def read(path: Path, key: CostKey | None = None) -> CostTables:
    """A stored table.

    Args:
        key: what it must have been measured for; None: whatever it was.

    Raises:
        CostTableError: it cannot be read, is damaged, or its key is another one.
    """
    remedy = "delete it, or take costs.path out of the configuration, to measure again"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = parse_mapping(content, StoredCosts)
    except OSError as error:
        raise CostTableError(f"cost table {path} cannot be read: {error}; {remedy}") from None
    except (ValueError, ConfigError) as error:
        raise CostTableError(f"cost table {path} is damaged: {error}; {remedy}") from None
    if stored.format != FORMAT:
        raise CostTableError(f"cost table {path}: expected format {FORMAT!r}, got {stored.format!r}; {remedy}")
    if key is not None and stored.key != key:
        found, wanted = asdict(stored.key), asdict(key)
        wrong = [
            f"{name} {found[name]!r} where {wanted[name]!r} is served" for name in found if found[name] != wanted[name]
        ]
        raise CostTableError(f"cost table {path} was measured for {'; '.join(wrong)}; {remedy}")
    return stored.costs


def write(path: Path, stored: StoredCosts) -> None:
    """Keep a table; whoever reads at the same time sees the old one or the new one. A full disk costs a warning."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(asdict(stored), indent=1), encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        logger.warning("cost table %s cannot be written, it will be measured again: %s", path, error)
        with contextlib.suppress(OSError):
            scratch.unlink()


def _check_same(tables: CostTables) -> None:
    """Raises CostTableError unless every rank has read the same numbers."""
    digest = hashlib.sha256(json.dumps(asdict(tables), sort_keys=True).encode()).hexdigest()
    smallest, largest = _over_ranks(np.array([float(int(digest[:12], 16))]))
    if smallest[0] != largest[0]:
        raise CostTableError("ranks have read different cost tables; delete them on all nodes to measure again")


def _over_ranks(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The smallest and the largest of each value over all ranks."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values, values
    both = torch.from_numpy(np.concatenate((-values, values))).cuda()
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    lowest, highest = np.split(both.cpu().numpy(), 2)
    return -lowest, highest
