"""Counters of /metrics before and after a run, in the three families that servers have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm import metric_names as ours
from lightspec_lightllm.client.speculation import Reading, speculation_between

VLLM = """
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a b}}c"}} {drafts}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {tokens}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
vllm:spec_decode_num_drafts_created{{engine="0"}} 1.7e+09
"""


def test_vllms_counters_give_what_vllm_bench_serve_reports() -> None:
    before = Reading.of(VLLM.format(drafts=100, tokens=200, accepted=90, first=60, second=30))
    after = Reading.of(VLLM.format(drafts=150, tokens=300, accepted=150, first=100, second=50))
    found = speculation_between(before, after)
    assert found is not None
    assert (found.num_drafts, found.draft_tokens, found.accepted_tokens) == (50, 100, 60)
    assert found.acceptance_length == found.mean_accept_length == pytest.approx(1 + 60 / 50)
    assert found.per_position_acceptance_rates == pytest.approx((40 / 50, 20 / 50))
    assert found.accepted_per_verified == found.accepted_per_drafted == pytest.approx(0.6)


def test_engines_of_one_server_are_added_up() -> None:
    two = VLLM.format(drafts=1, tokens=2, accepted=1, first=1, second=0)
    both = two + two.replace('engine="0"', 'engine="1"')
    found = speculation_between(Reading({}), Reading.of(both))
    assert found is not None
    assert (found.num_drafts, found.draft_tokens, found.accepted_tokens) == (2, 4, 2)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_this_packages_counters_tell_verified_from_drafted_and_count_rounds_without_a_proposal(
    drafts: int, trimmed: int, accepted: int, rounds: int
) -> None:
    verified = accepted + 5
    page = "\n".join(
        f"{metric.name}_total {value}.0"
        for metric, value in (
            (ours.DRAFTS, drafts),
            (ours.DRAFT_TOKENS, verified + trimmed),
            (ours.VERIFIED_TOKENS, verified),
            (ours.ACCEPTED_TOKENS, accepted),
            (ours.REQUEST_ROUNDS, rounds),
            (ours.COMMITTED_TOKENS, rounds + accepted),
        )
    )
    found = speculation_between(Reading({}), Reading.of(page))
    assert found is not None
    assert found.mean_accept_length == pytest.approx(1 + accepted / rounds)
    assert found.accepted_per_verified == pytest.approx(accepted / verified)
    assert found.accepted_per_drafted == pytest.approx(accepted / (verified + trimmed))
    assert found.acceptance_length == (pytest.approx(1 + accepted / drafts) if drafts else None)


def test_lightllms_histogram_gives_the_mean_over_requests() -> None:
    name = "lightllm_request_mtp_avg_token_per_step"
    page = name + '_sum{{model_name="m"}} {}\n' + name + '_count{{model_name="m"}} {}\n'
    found = speculation_between(Reading.of(page.format(30, 10)), Reading.of(page.format(50, 18)))
    assert found is not None
    assert found.mean_accept_length == pytest.approx(20 / 8)
    assert found.accepted_per_verified is None


def test_a_server_that_started_again_meanwhile_counts_from_zero() -> None:
    before = Reading.of(VLLM.format(drafts=100, tokens=200, accepted=90, first=60, second=30))
    after = Reading.of(VLLM.format(drafts=10, tokens=20, accepted=5, first=4, second=1))
    found = speculation_between(before, after)
    assert found is not None
    assert (found.num_drafts, found.accepted_tokens) == (10, 5)


@pytest.mark.parametrize("page", ["", "process_cpu_seconds_total 3.0", "<html>not metrics</html>"])
def test_a_page_without_such_counters_says_nothing(page: str) -> None:
    assert speculation_between(Reading.of(page), Reading.of(page)) is None
    assert speculation_between(None, Reading.of(page)) is None
