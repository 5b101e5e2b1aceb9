"""The experiment: alternation, pairing, the comparison of texts, and what an interruption leaves."""

import weakref
from collections import Counter
from pathlib import Path

import pytest

from lightspec_lightllm.bench import host
from lightspec_lightllm.bench.cells import Cell, Run, first_difference
from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.experiment import num_requests, run_experiment, schedule
from lightspec_lightllm.bench.metrics import measure
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.bench.runner import RequestResult, RunResult
from lightspec_lightllm.errors import ConfigError, DatasetError
from tests.bench.fakes import FakeHost, FakeRounds

ARMS = ("off", "fixed:3", "lightspec")
CHAT = Dataset("sharegpt", "chat.json", tuple(Prompt(f"p{i}", f"prompt {i}") for i in range(10)))


def options(**changes: object) -> BenchOptions:
    defaults = {"datasets": ("sharegpt",), "concurrency": (1, 4), "arms": ARMS, "max_tokens": 8, "repetitions": 3}
    return BenchOptions(**(defaults | changes))  # type: ignore[arg-type]


class Heard:
    def __init__(self) -> None:
        self.started: list[tuple[int, str, int]] = []
        self.requests = 0

    def run_started(self, cell: Cell, arm: str, repetition: int) -> None:
        self.started.append((cell.concurrency, arm, repetition))

    def request_finished(self, _result: RequestResult, /) -> None:
        self.requests += 1

    def run_finished(self, cell: Cell, run: Run) -> None:
        assert cell.runs[-1] is run


def test_every_repetition_runs_every_arm_and_starts_with_another() -> None:
    order = list(schedule(ARMS, 4))
    assert [arm for repetition, arm in order if repetition == 0] == ["off", "fixed:3", "lightspec"]
    assert [arm for repetition, arm in order if repetition == 1] == ["fixed:3", "lightspec", "off"]
    assert order[9:] == [(3, arm) for arm in ARMS]
    assert set(Counter(order).values()) == {1}


def test_every_arm_answers_the_same_prompts_with_the_same_text() -> None:
    heard = Heard()
    experiment = run_experiment(FakeHost(), [CHAT], options(), heard)
    assert heard.requests == num_requests(options()) == 54
    assert [cell.concurrency for cell in experiment.cells] == [1, 4]
    for cell in experiment.cells:
        assert len(cell.runs) == 9
        assert cell.differences() == []
        assert len({tuple(r.tokens for r in run.result.requests) for run in cell.runs}) == 1
    assert sum(cell.compared_texts() for cell in experiment.cells) == 36


def test_interleaved_arms_have_hosts_of_their_own_and_answer_the_same() -> None:
    heard, host = Heard(), FakeHost()
    experiment = run_experiment(host, [CHAT], options(interleave=True), heard)
    assert heard.requests == num_requests(options()) == 54
    assert [other.opened for other in host.others] == [[arm] for arm in ARMS] * 2
    assert host.started == ["off"]  # its warm-up
    assert heard.started[:2] == [(1, "off fixed:3 lightspec", 0), (1, "fixed:3 lightspec off", 1)]
    for cell in experiment.cells:
        assert Counter((run.arm, run.repetition) for run in cell.runs) == Counter(schedule_pairs(3))
        assert cell.differences() == []
        for run in cell.runs:
            assert run.metrics.duration < experiment.duration


def schedule_pairs(repetitions: int) -> list[tuple[str, int]]:
    return [(arm, repetition) for repetition, arm in schedule(ARMS, repetitions)]


def test_more_prompts_in_flight_means_more_of_the_same_order() -> None:
    experiment = run_experiment(FakeHost(), [CHAT], options(concurrency=(1, 4, 12)), Heard())
    first, second, third = (cell.prompts for cell in experiment.cells)
    assert first == second[:2]
    assert second == third[:4]
    assert third[10:] == third[:2], "a set smaller than the run begins again"


def test_a_wrong_text_is_found_with_its_place_and_the_gap_of_the_logits() -> None:
    host = FakeHost(wrong="lightspec")
    experiment = run_experiment(host, [CHAT], options(concurrency=(4,), repetitions=1), Heard())
    (cell,) = experiment.cells
    found = cell.differences()
    assert [(d.arm, d.position, d.gap) for d in found] == [("lightspec", 2, 2e-5)] * 4
    prompt = host.chat(cell.prompts[0].text)
    assert host.asked_gaps[0] == prompt + list(cell.baseline()[0].tokens[:2])


@pytest.mark.parametrize("interleave", [False, True])
def test_runs_that_end_by_their_tokens_compare_texts_as_far_as_both_came(interleave: bool) -> None:
    host = FakeHost()
    experiment = run_experiment(host, [CHAT], options(output_tokens=50, interleave=interleave), Heard())
    assert num_requests(options(output_tokens=50)) is None
    for cell in experiment.cells:
        assert len(cell.runs) == 9
        assert len(cell.prompts) == max(cell.concurrency, 2) + 7
        assert cell.compared_texts() > 6 * (50 // 8 - 1)
        assert cell.differences() == []
        for run in cell.runs:
            assert 50 <= run.metrics.total_output_tokens < 50 + 3 * cell.concurrency
    wrong = run_experiment(
        FakeHost(wrong="lightspec"), [CHAT], options(output_tokens=300, num_prompts=5, repetitions=1), Heard()
    )
    for cell in wrong.cells:
        found = cell.differences()
        assert {(d.arm, d.position) for d in found} == {("lightspec", 2)}
        assert max(d.prompt_index for d in found) >= 30, "prompts that were asked anew are compared too"
        assert all(d.prompt == cell.prompts[d.prompt_index % 5].key for d in found)


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ((5, "length"), (5, "length"), True),
        ((5, "length"), (3, "unfinished"), True),
        ((3, "unfinished"), (5, "length"), True),
        ((3, "unfinished"), (4, "unfinished"), True),
        ((5, "length"), (6, "unfinished"), False),
        ((6, "unfinished"), (5, "stop"), False),
        ((5, "length"), (4, "stop"), False),
    ],
)
def test_a_text_that_goes_on_where_the_other_ended_is_another(
    expected: tuple[int, str], found: tuple[int, str], same: bool
) -> None:
    def run(arm: str, length: int, reason: str) -> Run:
        request = RequestResult(1, tuple(range(length)), reason, 1.0, 2.0, (1.0,))
        result = RunResult((request,), (), 2.0)
        return Run(arm, 0, result, measure(result))

    cell = Cell(CHAT, 1, CHAT.prompts[:1], [run("off", *expected), run("lightspec", *found)])
    assert cell.compared_texts() == 1
    assert [difference.position for difference in cell.differences()] == ([] if same else [min(expected[0], found[0])])


def test_without_the_baseline_nothing_is_compared() -> None:
    experiment = run_experiment(FakeHost(), [CHAT], options(arms=("fixed:3", "lightspec")), Heard())
    assert all(cell.compared_texts() == 0 and cell.differences() == [] for cell in experiment.cells)
    assert experiment.cells[0].ratio("lightspec", "off") is None
    assert experiment.cells[0].best_static() == "fixed:3"


def test_ratios_are_paired_inside_a_repetition() -> None:
    cell = run_experiment(FakeHost(), [CHAT], options(concurrency=(4,)), Heard()).cells[0]
    ratio = cell.ratio("lightspec", "off")
    assert ratio is not None
    pairs = [
        fast.metrics.output_throughput / slow.metrics.output_throughput
        for fast, slow in zip(cell.of("lightspec"), cell.of("off"), strict=True)
    ]
    assert (ratio.low, ratio.high) == (min(pairs), max(pairs))
    assert ratio.median == sorted(pairs)[1]


def test_the_repetitions_of_a_cell_go_on_with_one_planner_per_arm() -> None:
    host = FakeHost()
    run_experiment(host, [CHAT], options(concurrency=(1, 4), repetitions=3), Heard())
    warm_up, *cells = host.opened
    assert warm_up == "off"
    assert cells == ["off", "fixed:3", "lightspec"] * 2


def test_an_interruption_keeps_whole_runs_only() -> None:
    # The warm-up takes 4 rounds, two prompts of off 16, of fixed:3 8; the next run is cut.
    host = FakeHost(interrupt_after=29)
    experiment = run_experiment(host, [CHAT], options(), Heard())
    assert experiment.interrupted
    assert [run.arm for cell in experiment.cells for run in cell.runs] == ["off", "fixed:3"]


def test_an_interruption_before_the_first_run_keeps_no_cell() -> None:
    experiment = run_experiment(FakeHost(interrupt_after=0), [CHAT], options(), Heard())
    assert experiment.interrupted
    assert experiment.cells == []


def test_prompts_that_do_not_fit_are_left_out_and_counted() -> None:
    mixed = Dataset("sharegpt", "chat.json", (*CHAT.prompts, Prompt("long", "x" * 300)))
    experiment = run_experiment(FakeHost(), [mixed], options(concurrency=(11,)), Heard())
    assert experiment.too_long == {"sharegpt": 1}
    assert "long" not in {prompt.key for prompt in experiment.cells[0].prompts}


def test_a_set_without_a_fitting_prompt_is_an_error_that_says_what_to_do() -> None:
    long = Dataset("sharegpt", "long.json", (Prompt("long", "x" * 300),))
    with pytest.raises(
        DatasetError, match=r"long\.json: no prompt fits the context of 256 tokens; the shortest has 300"
    ):
        run_experiment(FakeHost(), [long], options(), Heard())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": (0,)}, "--concurrency: expected at least 1, got 0"),
        ({"concurrency": ()}, "--concurrency: expected at least one value"),
        ({"concurrency": (4, 4)}, "--concurrency: a value is given twice in 4 4"),
        ({"max_tokens": 0}, "--max-tokens: expected at least 1, got 0"),
        ({"repetitions": 0}, "--repetitions: expected at least 1, got 0"),
        ({"num_prompts": 0}, "--num-prompts: expected at least 1, got 0"),
        ({"datasets": ("mbpp",)}, "--dataset: 'mbpp' is unknown; expected one of humaneval, gsm8k, sharegpt"),
        ({"datasets": ("gsm8k", "sharegpt"), "dataset_path": Path("x")}, "--dataset-path: say which kind of file"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**changes)
    assert message in str(caught.value)


def test_the_first_difference_is_where_the_texts_part_or_the_shorter_ends() -> None:
    assert first_difference((1, 2, 3), (1, 9, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_an_installation_without_the_compiler_of_the_attention_is_told_which_extra_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "version_of", lambda package: None if package == "numba" else "1.0")
    with pytest.raises(ConfigError, match=r"needs numba; install lightspec_lightllm\[embedded\]"):
        host.check_installed()


def test_engines_of_an_interleaved_cell_are_gone_when_the_next_one_begins() -> None:
    """Whose hosts refer to themselves, as those of engines do, so that only a collection frees them."""
    left: list[weakref.ref[FakeHost]] = []
    alive: list[int] = []

    class Cyclic(FakeHost):
        def beside(self) -> FakeHost:
            alive.append(sum(ref() is not None for ref in left))
            other = FakeHost()
            other.running = FakeRounds(other, "off", 1)
            left.append(weakref.ref(other))
            return other

    run_experiment(Cyclic(), [CHAT], options(interleave=True, repetitions=1), Heard())
    assert alive == [0, 1, 2, 0, 1, 2]
