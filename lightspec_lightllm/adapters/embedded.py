"""The embedded CPU engine as a host, and the runtime that puts model, drafter, costs and planner together."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightspec_lightllm.adapters.cost_cache import load_or_measure, usual_threads
from lightspec_lightllm.config import Config
from lightspec_lightllm.decode import Round, Verdict, accept_lengths
from lightspec_lightllm.decode.host import IntArray, StepRule
from lightspec_lightllm.drafters import Drafter, make_drafter
from lightspec_lightllm.engine import Engine, SamplingParams, Sequence, load_model
from lightspec_lightllm.engine.fetch import ProgressListener
from lightspec_lightllm.planner import BatchView, CostModel, DrafterKind, Planner, make_planner
from lightspec_lightllm.plugins import InstalledStrategies


class EmbeddedHost:
    """Runs rounds on an `Engine`, with a drafter or without one.

    An engine is connected to the host that was made last or, of several, to the one that schedules. Requests that run
    already are then served on; a drafter that reads hidden states has nothing to go by for them and abstains.
    """

    def __init__(self, engine: Engine, drafter: Drafter | None, max_draft_steps: int) -> None:
        self.engine = engine
        self.drafter = drafter
        self.max_draft_steps = max_draft_steps
        self._seqs: list[Sequence] = []
        self._joined: tuple[Sequence, ...] = ()
        self._drafts: dict[int, tuple[IntArray, np.ndarray[Any, np.dtype[np.float64]]]] = {}
        self._tokens = np.zeros((0, 1 + max_draft_steps), dtype=np.int64)
        self._begun: set[int] = set()
        self._connect()

    def _connect(self) -> None:
        engine, drafter = self.engine, self.drafter
        # What another host computed of these, this one's drafter has not seen; a resume computes it again.
        self._begun = {seq.request_id for seq in (*engine.running, *engine.waiting) if seq.num_computed}
        self._drafts.clear()
        before = getattr(engine.release_listener, "__self__", None)
        for known in (drafter, before.drafter if isinstance(before, EmbeddedHost) else None):
            if known is not None:
                for request_id in self._begun:
                    known.release(request_id)  # the host before is not told of their end
        engine.model.capture_layers = drafter.capture_layers if drafter is not None else ()
        engine.prefill_listener = self._prefill if drafter is not None else None
        engine.release_listener = self._release

    def _prefill(self, seq: Sequence, start: int, hidden: torch.Tensor) -> None:
        if start == 0:
            self._begun.discard(seq.request_id)
        if self.drafter is not None and seq.request_id not in self._begun:
            self.drafter.prefill(seq, start, hidden)

    def _release(self, request_id: int) -> None:
        self._begun.discard(request_id)
        self._drafts.pop(request_id, None)
        if self.drafter is not None:
            self.drafter.release(request_id)

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.perf_counter()

    def check_slots(self) -> None:
        """See `Host`."""
        self.engine.check()

    def schedule(self) -> BatchView:
        """See `Host`."""
        if self.engine.release_listener != self._release:
            self._connect()
        width = self.max_draft_steps
        self._seqs = seqs = self.engine.schedule(1 + width)
        tokens = np.zeros((len(seqs), 1 + width), dtype=np.int64)
        confidence = np.zeros((len(seqs), width))
        proposed = np.zeros(len(seqs), dtype=np.int64)
        for row, seq in enumerate(seqs):
            tokens[row, 0] = seq.tokens[-1]
            held = self._drafts.get(seq.request_id)
            if held is not None:
                drafts, sure = held
                proposed[row] = len(drafts)
                tokens[row, 1 : 1 + len(drafts)] = drafts
                confidence[row, : len(drafts)] = sure
        self._tokens = tokens
        return BatchView(
            num_requests=len(seqs),
            proposed=proposed,
            context_tokens=np.array([len(seq.tokens) for seq in seqs], dtype=np.int64),
            confidence=confidence if self.drafter is not None else None,
            request_ids=np.array([seq.request_id for seq in seqs], dtype=np.int64),
        )

    def verify(self, verified: IntArray) -> Verdict:
        """See `Host`."""
        rows = 1 + verified
        forward = self.engine.forward(self._seqs, self._tokens, rows)
        sampled = np.full(self._tokens.shape, -1, dtype=np.int64)
        sampled[np.arange(sampled.shape[1]) < rows[:, None]] = self.engine.sample(forward, self._seqs, rows)
        accepted = accept_lengths(self._tokens[:, 1:], sampled, verified)
        if forward.hidden is not None and self.drafter is not None:
            self.drafter.observe(self._seqs, forward.hidden, rows, accepted)
        self._joined = forward.joined
        return Verdict(accepted, sampled, prompt_tokens=forward.prompt_tokens)

    def commit(self, verdict: Verdict) -> IntArray:
        """See `Host`."""
        return self.engine.commit(self._seqs, verdict.tokens, verdict.accepted)

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        """See `Host`. No drafts are kept past the last token that a request may still generate."""
        self._drafts.clear()
        going_on = [seq for seq in (*self._seqs, *self._joined) if seq.status == "running"]
        if self.drafter is None or steps == 0 or not going_on:
            return 0
        proposals = self.drafter.propose(going_on, self.max_draft_steps if chain else steps, chain)
        for row, seq in enumerate(going_on):
            length = min(int(proposals.lengths[row]), seq.params.max_tokens - seq.num_generated - 1)
            if length > 0:
                self._drafts[seq.request_id] = (proposals.tokens[row, :length], proposals.confidence[row, :length])
        return proposals.steps


class EmbeddedRuntime:
    """A loaded model with its drafter and its measured costs."""

    def __init__(self, engine: Engine, drafter: Drafter, costs: CostModel, max_draft_steps: int) -> None:
        self.engine = engine
        self.drafter = drafter
        self.costs = costs
        self.max_draft_steps = max_draft_steps

    @classmethod
    def open(
        cls, config: Config, drafter: str | None = None, *, progress: ProgressListener | None = None
    ) -> EmbeddedRuntime:
        """Load everything that ``config`` names; ``drafter`` overrides its drafter.

        Raises:
            ModelError: the model or the drafter's weights cannot be used.
            CostTableError: the stored cost table of this model and machine is damaged.
        """
        model, tokenizer = load_model(
            Path(config.model.path) if config.model.path else None, config.engine.weights, progress=progress
        )
        usual = usual_threads(model.config.sha256, config.engine.weights)
        engine = Engine(model, tokenizer, config.engine, usual_threads=usual)
        steps = config.planner.max_draft_steps
        chosen = make_drafter(drafter or config.drafter.name, embedding=model.embedding, max_draft_steps=steps)
        return cls(engine, chosen, load_or_measure(engine, chosen, progress), steps)

    def beside(self, drafter: str) -> EmbeddedRuntime:
        """Another engine over the same weights, with requests, cache and a drafter of its own, and the same costs."""
        options = replace(self.engine.options, threads=self.engine.num_threads)
        engine = Engine(copy(self.engine.model), self.engine.tokenizer, options)
        own = make_drafter(drafter, embedding=engine.model.embedding, max_draft_steps=self.max_draft_steps)
        return EmbeddedRuntime(engine, own, self.costs, self.max_draft_steps)

    def submit(self, prompt: list[int] | str, params: SamplingParams) -> Sequence:
        """Queue a request; see `Engine.submit`."""
        return self.engine.submit(prompt, params)

    @property
    def drafter_kind(self) -> DrafterKind:
        """What a step costs, as planners are told.

        A head's first pass takes in the accepted rows alone, without its vocabulary, so that its time hardly depends on
        how many rows were verified: the steps take d Td(N), as of a drafter without KV, and a draft takes start(N)
        beside them for that pass (``draft_start`` of `CostModel.from_tables`, measured by `adapters.calibration`).
        """
        return "free" if self.drafter.kind == "free" else "serial_no_kv"

    def planner(self, strategy: str, **options: Any) -> Planner:
        """A fresh planner for this drafter and these costs."""
        return make_planner(
            strategy,
            self.costs,
            max_draft_steps=self.max_draft_steps,
            drafter=self.drafter_kind,
            registered=InstalledStrategies(),
            **options,
        )

    def round(self, strategy: str = "lightspec", **options: Any) -> Round:
        """Rounds of a fresh planner on this engine. Without speculation the drafter is not even fed."""
        drafter = None if strategy == "off" else self.drafter
        return Round(EmbeddedHost(self.engine, drafter, self.max_draft_steps), self.planner(strategy, **options))
