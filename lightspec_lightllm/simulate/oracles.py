"""Planners that read what is hidden from real ones: the distance to them is what a real planner could still gain."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.planner import BatchView, Plan, PlannerCounters, RoundFeedback
from lightspec_lightllm.planner.costs import CostModel, draft_terms
from lightspec_lightllm.planner.steps import legal_steps
from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.knowledge import knowledge_of

REWARM_ROUNDS = 128
"""Rounds over which catching up with the drafter's backlog is written off when drafting is resumed."""

POPULATION = 192
"""Drafts of so many requests, at least, stand for those of the next round."""

REFRESH_ROUNDS = 4
"""Rounds for which the value of each number of steps is kept."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a fixed server is set to.

    Attributes:
        steps: d, drafts per request and round.
        budget: drafts verified per request that has any, on average.
    """

    steps: int
    budget: float


class Oracle:
    """What planners of hidden state share."""

    def __init__(self, host: ScenarioHost) -> None:
        self.host = host
        self.max_draft_steps = host.max_draft_steps
        self.counters = PlannerCounters()

    def observe(self, feedback: RoundFeedback) -> None:  # noqa: ARG002 - there is nothing to learn
        """Count the round."""
        self.counters.observed += 1

    def _capped(self, rows: int, num_requests: int) -> int:
        most = self.host.true_costs.max_rows
        return rows if most is None else max(num_requests, min(rows, most))


class StaticPlanner(Oracle):
    """The same steps and the same budget per request in all rounds of a segment.

    Args:
        settings: of each segment.
        ranked: rows are taken by the live confidence, else breadth-first as a fixed server takes them.
    """

    def __init__(self, host: ScenarioHost, settings: Sequence[Setting], *, ranked: bool = False) -> None:
        super().__init__(host)
        self._settings = settings
        self._ranked = ranked

    def plan(self, view: BatchView) -> Plan:
        """See `planner.Planner`."""
        setting = self._settings[self.host.world.segment]
        proposed = np.asarray(view.proposed)
        waiting = int(np.minimum(proposed, setting.steps).sum())
        extra = min(waiting, int(setting.budget * np.count_nonzero(proposed) + 1e-9))
        survival = np.asarray(np.cumprod(self.host.world.drafts.told, axis=1)) if self._ranked else None
        rows = self._capped(view.num_requests + extra, view.num_requests)
        return Plan(rows, setting.steps, view.num_requests, survival=survival, proposed=proposed)


class _History:
    """What was known of the last rounds' drafts."""

    def __init__(self) -> None:
        self._rounds: deque[FloatArray] = deque()
        self._size = 0

    def push(self, states: FloatArray) -> None:
        """Add a round's float[N, F]."""
        self._rounds.append(states)
        self._size += len(states)
        while self._size - len(self._rounds[0]) >= max(POPULATION, 2 * len(states)):
            self._size -= len(self._rounds.popleft())

    def sample(self, num_requests: int) -> FloatArray:
        """float[M, N, F], the newest ones, M of them for each request of a batch; as a rule its own."""
        each = -(-POPULATION // num_requests)
        held = np.concatenate(self._rounds)[-each * num_requests :]
        return np.resize(held, (each, num_requests, held.shape[1]))


class OptimumPlanner(Oracle):
    """Knows the true costs, and of every waiting draft its true acceptance (see `knowledge`); scans all d and budgets.

    Of this round it takes the d and the B that maximise
    ``gain(B - N) - lambda (T(B) + fills(d) Tf(B)) + V(d) - lambda (chained(d) Td(N) + start(N))``, the start for d > 0
    alone, where V(d) is the value of the best budget for the next round: of the same requests, with tokens as hard as
    those of the last rounds.

    Args:
        prices: lambda of each segment, tokens per millisecond: the rate that this planner itself reaches there.
    """

    def __init__(self, host: ScenarioHost, prices: Sequence[float]) -> None:
        super().__init__(host)
        self._prices = prices
        self._legal = legal_steps(host.scenario.drafter.kind, self.max_draft_steps)
        self._knowledge = knowledge_of(host.world)
        self._history = _History()
        self._values: FloatArray | None = None
        self._valued = (-1, 0, 0)

    def plan(self, view: BatchView) -> Plan:
        """See `planner.Planner`."""
        host, num_requests = self.host, view.num_requests
        price = self._prices[host.world.segment]
        costs, context = host.true_costs.for_requests(num_requests), float(np.mean(view.context_tokens))
        states = self._knowledge.states()
        survival = self._knowledge.survival(states)
        self._history.push(states)
        values = self._steps_values(num_requests, costs, context, price)

        proposed = np.asarray(view.proposed)
        waiting = survival[np.arange(self.max_draft_steps) < proposed[:, None]]
        gain = np.concatenate(([0.0], np.cumsum(np.sort(waiting)[::-1])))
        rows = np.arange(num_requests, self._capped(num_requests + len(waiting), num_requests) + 1)
        target, fill = costs.lines(int(rows[-1]), context)[0], costs.fill_line(int(rows[-1]), context)
        best = (-np.inf, 0, 0)
        for steps, value in zip(self._legal, values.tolist(), strict=True):
            fills = draft_terms(host.scenario.drafter.kind, steps)[1]
            now = gain[: len(rows)] - price * (target[rows] + fills * fill[rows])
            at = int(now.argmax())
            if now[at] + value > best[0] + 1e-9:
                best = (float(now[at] + value), int(rows[at]), steps)
        return Plan(best[1], best[2], num_requests, survival=survival, proposed=proposed)

    def observe(self, feedback: RoundFeedback) -> None:
        """See `planner.Planner`."""
        super().observe(feedback)
        self._knowledge.learn(feedback.verified, feedback.accepted)

    def _steps_values(self, num_requests: int, costs: CostModel, context: float, price: float) -> FloatArray:
        """float[D]: V(d), less the price of what the drafter takes that d alone decides on."""
        age, segment, requests = self._valued
        world = self.host.world
        if self._values is not None and age < REFRESH_ROUNDS and (segment, requests) == (world.segment, num_requests):
            self._valued = (age + 1, segment, requests)
            return self._values
        kind, block, backlog = self.host.scenario.drafter.kind, self.max_draft_steps, self.host.backlog
        sample = self._history.sample(num_requests)
        survival = self._knowledge.survival(sample)
        chain_rows = num_requests * block if kind == "block" else num_requests
        most = self._capped(num_requests * (1 + block), num_requests)
        reach = max(num_requests * (1 + block), chain_rows, num_requests + backlog)
        (target, draft), fill = costs.lines(reach, context), costs.fill_line(reach, context)
        out = []
        for steps in self._legal:
            chained, fills = draft_terms(kind, steps)
            rows = np.arange(num_requests, min(num_requests * (1 + steps), most) + 1)
            gain = np.zeros((len(sample), num_requests * steps + 1))
            np.cumsum(-np.sort(-survival[:, :, :steps].reshape(len(sample), -1), axis=1), axis=1, out=gain[:, 1:])
            by_budget = gain[:, : len(rows)] - price * (target[rows] + fills * fill[rows])
            # The best budget is chosen once the drafts are known: the mean of the best, not the best of the mean.
            value = float(by_budget.max(axis=1).mean()) - price * chained * float(draft[chain_rows])
            value -= price * costs.draft_start_ms(kind, num_requests, steps)
            if steps and fills:
                value -= price * float(fill[num_requests + backlog] - fill[num_requests]) / REWARM_ROUNDS
            elif not steps and kind in ("serial", "chained", "block"):
                value -= price * float(fill[2 * num_requests] - fill[num_requests])
            out.append(value)
        self._values, self._valued = np.array(out), (1, world.segment, num_requests)
        return self._values


class ClairvoyantPlanner(Oracle):
    """Knows which drafts are right, now and in the next round: every row it verifies is accepted.

    Args:
        prices: lambda of each segment, tokens per millisecond.
    """

    def __init__(self, host: ScenarioHost, prices: Sequence[float]) -> None:
        super().__init__(host)
        self._prices = prices
        self._legal = legal_steps(host.scenario.drafter.kind, self.max_draft_steps)

    def plan(self, view: BatchView) -> Plan:
        """See `planner.Planner`."""
        host, world, num_requests = self.host, self.host.world, view.num_requests
        price, kind = self._prices[world.segment], host.scenario.drafter.kind
        costs, context = host.true_costs.for_requests(num_requests), float(np.mean(view.context_tokens))
        proposed = np.asarray(view.proposed)
        right = np.minimum(np.minimum(world.drafts.runs, proposed), world.left - 1)
        block = self.max_draft_steps
        chain_rows = num_requests * block if kind == "block" else num_requests
        draft = costs.lines(max(chain_rows, num_requests * (1 + block)), context)[1]

        verified: dict[int, IntArray] = {}
        ahead: dict[int, IntArray] = {}
        best = (-np.inf, 0, 0)
        for steps in self._legal:
            chained, fills = draft_terms(kind, steps)
            extra, value = self._best_rows(int(right.sum()), num_requests, costs, context, price=price, fills=fills)
            if extra not in verified:
                verified[extra] = select_rows(right, num_requests + extra)
                ahead[extra] = self._ahead(1 + verified[extra])
            following = int(np.minimum(ahead[extra], steps).sum())
            value += self._best_rows(following, num_requests, costs, context, price=price, fills=fills)[1]
            value -= price * chained * float(draft[chain_rows])
            value -= price * costs.draft_start_ms(kind, num_requests, steps)
            if value > best[0] + 1e-9:
                best = (value, extra, steps)
        taken = np.arange(self.max_draft_steps) < verified[best[1]][:, None]
        return Plan(num_requests + best[1], best[2], num_requests, survival=taken.astype(np.float64), proposed=proposed)

    def _best_rows(
        self, right: int, num_requests: int, costs: CostModel, context: float, *, price: float, fills: float
    ) -> tuple[int, float]:
        """How many of the right drafts are worth their rows, and the value of that."""
        extra = np.arange(self._capped(num_requests + right, num_requests) - num_requests + 1)
        most = num_requests + right
        target, fill = costs.lines(most, context)[0], costs.fill_line(most, context)
        value = extra - price * (target[num_requests + extra] + fills * fill[num_requests + extra])
        at = int(value.argmax())
        return at, float(value[at])

    def _ahead(self, committed: IntArray) -> IntArray:
        """int[N], right drafts in a row once so many tokens more are committed; none where the answer ends."""
        world = self.host.world
        runs = world.look(world.slots, world.position[world.slots] + committed).runs
        return np.asarray(np.maximum(0, np.minimum(runs, world.left - committed - 1)))
