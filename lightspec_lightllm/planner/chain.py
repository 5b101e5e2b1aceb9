"""Ending a draft early, on a host that sees each step's confidence before it makes the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightspec_lightllm.planner.estimator import AcceptanceEstimator
from lightspec_lightllm.planner.intake import read_chain
from lightspec_lightllm.planner.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ChainRule:
    """Whether one more step of a serial drafter pays.

    A step costs ``price * Td(N)`` for the whole batch (what a draft takes beside its steps is spent by then), and each
    draft of it that is verified costs a row. It pays if the drafts that are worth their row are worth the step
    together: ``sum_i max(s_i - row_price, 0) > step_price``, where s_i is the survival expected of request i's next
    draft.

    Attributes:
        row_price: tokens that the time of one more verified row could bring elsewhere.
        step_price: the same of one more draft step.
    """

    estimator: AcceptanceEstimator
    row_price: float
    step_price: float

    def worth_another_step(self, confidence: FloatArray, request_ids: IntArray) -> bool:
        """Decide after j steps.

        Args:
            confidence: float[n, j], of the drafts so far, j at least 1.
            request_ids: int[n], of the requests that are drafted for.

        Raises:
            PlanError: a confidence is no probability, nor NaN for one that is unknown; or there is not one row and one
                id per request.
        """
        sure, ids, num_unknown = read_chain(confidence, request_ids)
        expected = self.estimator.next_survival(sure, ids, some_unknown=num_unknown > 0)
        return float(np.maximum(expected - self.row_price, 0.0).sum()) > self.step_price
