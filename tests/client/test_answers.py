"""Right and wrong answers: the number of GSM8K, the code of HumanEval in its sandbox."""

import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.bench.datasets import Prompt
from lightspec_lightllm.client.answers import answered_number, check_code, check_numbers, completion_of, expected_number
from lightspec_lightllm.client.sandbox import Sandbox
from lightspec_lightllm.errors import DatasetError, DownloadError

STUB = "def add(a, b):\n    '''The sum.'''\n"
PROBLEM = Prompt(
    "HumanEval/x",
    "",
    {
        "task_id": "HumanEval/x",
        "prompt": STUB,
        "entry_point": "add",
        "test": "def check(f):\n    assert f(2, 3) == 5\n",
    },
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He has 3 left, so 3 * 6 = 18. #### 18", "18"),
        ("#### 1,234.50\nI hope that helps: 7", "1234.5"),
        ("#### $-5", "-5"),
        (r"The answer is $\boxed{42}$ out of 100.", "42"),
        (r"\boxed{\$1,000}", "1000"),
        ("First 3 and then 4.", "4"),
        ("That makes 2,000 dollars.", "2000"),
        ("It costs $.50", "0.5"),
        ("so she pays -$3", "-3"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_number_of_an_answer_is_the_marked_one_or_the_last(text: str, number: str | None) -> None:
    assert answered_number(text) == (None if number is None else Decimal(number))


@given(st.integers(-(10**9), 10**9), st.sampled_from(["#### {:,}", "The answer is {:,}.", r"\boxed{{{}}}", "= **{}**"]))
def test_a_number_is_found_however_it_is_written(number: int, form: str) -> None:
    assert answered_number("Step 1: 5 apples.\n" + form.format(number)) == number


def test_gsm8k_expects_what_its_record_says() -> None:
    assert expected_number(Prompt("a", "", {"expected": "1,000"})) == 1000
    public = Prompt("b", "", {"answer": "3 + 4 = <<3+4=7>>7\n#### 7"})
    assert expected_number(public) == 7
    found = check_numbers([(public, "It is 7.0"), (public, "It is 8"), (public, "?")])
    assert (found.correct, found.accuracy) == (1, 1 / 3)
    assert [v.reason for v in found.verdicts] == ["", "expected 7, found 8", "expected 7, found no number"]
    with pytest.raises(DatasetError, match="no number to expect"):
        expected_number(Prompt("c", "", {"answer": "seven"}))


WHOLE = STUB + "    return a + b\n"


@pytest.mark.parametrize(
    "text",
    [
        "    return a + b",
        "return a + b",
        "```python\n    return a + b\n```",
        f"Sure:\n```python\n{WHOLE}```\nIt adds.",
        f"```\n{WHOLE}",  # cut before the fence is closed
        f"First, an example:\n```python\nprint(1)\n```\nand now:\n```python\n{WHOLE}```",
        "```python\nimport math\n\n\ndef add(a, b):\n    return int(math.fsum([a, b]))\n```",
    ],
)
def test_code_is_found_in_an_answer_whatever_is_around_it(text: str) -> None:
    space: dict[str, object] = {}
    exec(STUB + completion_of("add", text), space)  # noqa: S102 - texts of this test
    assert space["add"](2, 3) == 5  # type: ignore[operator]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    if sys.platform != "linux":
        pytest.skip("the sandbox needs Linux")
    try:
        return Sandbox.open()
    except DownloadError as error:
        pytest.skip(f"the official checker cannot be had: {error}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    return a + b", ""),
        ("    return a - b", "failed: "),
        ("    return (", "failed: "),
        ("    import sys; sys.exit(0)", "failed: 0"),
        ("    import os; os._exit(0)", "timed out"),
        ("    return len('x' * (3 << 30))", "failed: "),
        ("    open('big', 'wb').write(b'0' * (64 << 20))", "failed: [Errno 27] File too large"),
        ("    import os; os.system('true')", "failed: 'NoneType' object is not callable"),
        ("    import os; assert 'HOME' not in os.environ\n    return a + b", ""),
    ],
)
def test_code_is_judged_by_the_official_checker_within_limits(sandbox: Sandbox, body: str, reason: str) -> None:
    verdict = check_code([(PROBLEM, body)], sandbox).verdicts[0]
    assert verdict.correct == (not reason)
    assert verdict.reason.startswith(reason)


def test_code_that_never_ends_is_ended(sandbox: Sandbox) -> None:
    hasty = Sandbox(sandbox.checker, timeout=0.5, alone=sandbox.alone)
    assert check_code([(PROBLEM, "    while True: pass")], hasty).verdicts[0].reason == "timed out"


def test_code_reaches_no_network_where_the_system_can_prevent_it(sandbox: Sandbox) -> None:
    assert ("no network" in sandbox.limits) == sandbox.alone
    if not sandbox.alone:
        pytest.skip("this system does not let a process leave its network")
    body = "    import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)"
    assert "unreachable" in check_code([(PROBLEM, body)], sandbox).verdicts[0].reason


def test_a_record_without_tests_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no text 'test'"):
        check_code([(Prompt("x", "", {"task_id": "x", "prompt": STUB}), "")], Sandbox(tmp_path))
