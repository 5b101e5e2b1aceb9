"""Requests as the plugin knows them beside LightLLM."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.lightllm.batch import RequestTable


@dataclass
class FakeReq:
    """The part of LightLLM's ``InferReq`` that a batch is made of."""

    req_id: int
    req_idx: int
    input_len: int = 10
    cur_output_len: int = 1
    max_new_tokens: int = 100
    shared: int = 0
    multimodal_params: dict[str, Any] = field(default_factory=lambda: {"images": [], "audios": []})

    def get_radix_cache_shared_len(self) -> int:
        return self.shared

    @property
    def shm_req(self) -> SimpleNamespace:
        return SimpleNamespace(input_len=self.input_len)

    @property
    def sampling_param(self) -> SimpleNamespace:
        return SimpleNamespace(shm_param=SimpleNamespace(max_new_tokens=self.max_new_tokens))


def test_a_row_that_passes_to_another_request_forgets_the_drafts_of_the_one_before() -> None:
    table = RequestTable(4)
    table.admit([FakeReq(7, 2)])
    table.drafts[2], table.cold_from[2] = 5, 3
    newcomer = FakeReq(8, 2)
    assert table.admit([newcomer]) == [newcomer]
    assert table.admit([newcomer]) == []
    assert table.collect([newcomer]).drafts.tolist() == [0]
    assert not table.is_cold(newcomer)


@given(
    drafts=st.integers(0, 15),
    output_len=st.integers(1, 40),
    max_new_tokens=st.integers(1, 40),
    input_len=st.integers(1, 9),
)
def test_no_draft_waits_past_the_last_token_that_a_request_may_generate(
    drafts: int, output_len: int, max_new_tokens: int, input_len: int
) -> None:
    table = RequestTable(1)
    req = FakeReq(1, 0, input_len=input_len, cur_output_len=output_len, max_new_tokens=max_new_tokens)
    table.admit([req])
    table.drafts[0] = drafts
    batch = table.collect([req])
    assert batch.seq_len.tolist() == [input_len + output_len]
    assert batch.drafts[0] == min(drafts, max(max_new_tokens - output_len - 1, 0))
    # Row j commits the token after next + j: with all drafts accepted the text ends exactly where it must.
    assert output_len + batch.drafts[0] + 1 <= max(max_new_tokens, output_len + 1)


def test_the_view_of_a_batch_has_what_waits_in_request_order_and_no_confidence() -> None:
    table = RequestTable(3)
    reqs = [FakeReq(11, 2, input_len=5), FakeReq(12, 0, input_len=7)]
    table.admit(reqs)
    table.drafts[:] = [4, 9, 1]
    view = table.collect(reqs).view
    assert (view.num_requests, view.confidence) == (2, None)
    assert view.proposed.tolist() == [1, 4]
    assert np.asarray(view.context_tokens).tolist() == [6, 8]
    assert view.request_ids is not None
    assert view.request_ids.tolist() == [11, 12]


def test_a_request_whose_drafter_rested_has_no_drafts_and_remembers_where_its_cache_ends() -> None:
    table = RequestTable(2)
    reqs = [FakeReq(1, 0, input_len=5), FakeReq(2, 1, input_len=8)]
    table.admit(reqs)
    table.mark_cold(table.collect(reqs[:1]))
    reqs[0].cur_output_len += 3
    table.mark_cold(table.collect(reqs))
    table.drafts[:] = 3
    assert table.cold_from.tolist() == [5, 8]
    assert table.collect(reqs).drafts.tolist() == [0, 0]


def test_pictures_move_the_positions_of_the_tokens_behind_them() -> None:
    table = RequestTable(1)
    images = [{"grid_thwd": (1, 2, 3, -40)}, {"grid_thwd": None}, {}]
    req = FakeReq(1, 0, multimodal_params={"images": images, "audios": []})
    table.admit([req])
    assert table.collect([req]).position_delta.tolist() == [-40]


def test_a_hole_that_lies_in_the_prefix_tree_is_not_the_requests_own() -> None:
    table = RequestTable(1)
    req = FakeReq(1, 0, input_len=5)
    table.admit([req])
    table.mark_cold(table.collect([req]))
    assert table.hole_start(req) == 5
    req.shared = 9
    assert table.hole_start(req) == 9
