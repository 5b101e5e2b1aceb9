"""What the optimum knows of the drafts: as much as a planner could have been told, and never what it could not."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.batch import Batch
from lightspec_lightllm.simulate.text import sigmoid
from lightspec_lightllm.simulate.world import World


class Knowledge(Protocol):
    """A state per request, and the survivals that it stands for."""

    def states(self) -> FloatArray:
        """float[N, F], of the drafts that wait."""

    def survival(self, states: FloatArray) -> FloatArray:
        """float[..., N, K], survivals of the batch's requests in states float[..., N, F]."""

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        """Take in a round's verified drafts and accept lengths, int[N]."""


class FullKnowledge:
    """The true acceptance of every draft, as a drafter with a perfect confidence would tell it. States are z_token."""

    def __init__(self, world: World) -> None:
        self._world = world

    def states(self) -> FloatArray:
        """See `Knowledge`."""
        return self._world.drafts.z

    def survival(self, states: FloatArray) -> FloatArray:
        """See `Knowledge`."""
        return np.asarray(np.cumprod(sigmoid(self._world.log_odds(self._world.slots, states)), axis=-1))

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        """There is nothing left to learn."""


NODES = np.linspace(-2.7, 2.7, 13)
"""Values of z_token between which a belief is spread."""


class Belief:
    """What accept lengths tell where no confidence does: the request's class and difficulty are known, its tokens'
    are inferred from which drafts were right (the forward recursion of a hidden Markov model, z_token hidden).

    States are probabilities of `NODES` for the first waiting draft's z_token.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._prior = np.exp(-0.5 * NODES**2)
        self._prior /= self._prior.sum()
        correlation = world.scenario.correlation
        scale = max(np.sqrt(1 - correlation**2), 0.3)  # no narrower than the nodes are apart
        step = np.exp(-0.5 * ((NODES - correlation * NODES[:, None]) / scale) ** 2)
        self._step = step / step.sum(axis=1, keepdims=True)
        self._request = np.full(len(world.request), -1)
        self._belief = np.tile(self._prior, (len(world.request), 1))
        self._slots = world.slots

    def states(self) -> FloatArray:
        """See `Knowledge`."""
        world = self._world
        self._slots = slots = world.slots
        new = slots[self._request[slots] != world.request[slots]]
        self._belief[new] = self._prior
        self._request[new] = world.request[new]
        return self._belief[slots]

    def _right(self, slots: IntArray) -> FloatArray:
        """float[N, K, nodes], acceptance of draft j of each request at each node."""
        base, noise = self._world.levels_of(slots)
        return sigmoid(base[:, :, None] + noise[:, None, None] * NODES)

    def survival(self, states: FloatArray) -> FloatArray:
        """See `Knowledge`."""
        right, reached = self._right(self._world.slots), states
        out = np.empty((*states.shape[:-1], right.shape[1]))
        for depth in range(right.shape[1]):
            alive = reached * right[:, depth]
            out[..., depth] = alive.sum(axis=-1)
            reached = alive @ self._step
        return out

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        """See `Knowledge`."""
        slots, drafts_right = self._slots, accepted - 1
        right, belief = self._right(slots), self._belief[slots]
        for depth in range(int(accepted.max())):
            going = drafts_right >= depth
            # The token after the last right draft is the target's own: a wrong draft if one was verified there.
            wrong = going & (drafts_right == depth)
            evidence = np.ones_like(belief)
            if depth < right.shape[1]:
                passed, failed = going & ~wrong, wrong & (verified > depth)
                evidence[passed] = right[passed, depth]
                evidence[failed] = 1.0 - right[failed, depth]
            moved = (belief * evidence) @ self._step
            belief[going] = (moved / moved.sum(axis=1, keepdims=True))[going]
        self._belief[slots] = belief


def knowledge_of(world: Batch) -> Knowledge:
    """What can be known of a scenario's drafts: all, where a confidence tells of them, else what outcomes tell.

    Raises:
        ConfigError: the text was recorded: its outcomes are known, their probabilities are not.
    """
    if not isinstance(world, World):
        raise ConfigError("the same-information optimum needs true probabilities: a trace has outcomes alone")
    drafter = world.scenario.drafter
    told = drafter.confidence != "none" and drafter.quality == "informed"
    return FullKnowledge(world) if told else Belief(world)
