"""Hooks: installed before or after LightLLM is imported, all or none, and taken out without a trace."""

import ast
import importlib
import inspect
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters.lightllm import hooks, signatures
from lightspec_lightllm.adapters.lightllm.hooks import HOOKS, Hook
from lightspec_lightllm.adapters.lightllm.signatures import Expectation, compare
from lightspec_lightllm.errors import HostError
from tests.adapters.lightllm import trees

FILES = {
    "__init__": "",
    "shelf": """
def double(number, *, times=2):
    return number * times


class Counter:
    limit: int = 3

    def __init__(self, start=0):
        self.start = start

    @staticmethod
    def sizes(largest=8, step: int = 1) -> list:
        return [step, largest]

    def next(self) -> int:
        return self.start + 1
""",
    "user": """
from lightllm.shelf import double
from lightllm.shelf import double as twice, Counter


def call(number):
    return double(number)


def make():
    return Counter(5)
""",
}

DOUBLE = Hook("lightllm.shelf:double", "wraps_of_tests:add_one", "(number, *, times=2)", "")
NEXT = Hook("lightllm.shelf:Counter.next", "wraps_of_tests:add_one", "(self)", "")
SIZES = Hook("lightllm.shelf:Counter.sizes", "wraps_of_tests:reverse", "@staticmethod (largest=8, step=1)", "")
MAKER = Hook("lightllm.user:Counter", "wraps_of_tests:subclass", None, "")
START = Hook("lightllm.shelf:Counter.__init__", "wraps_of_tests:mark", None, "")


def add_one(original: Callable[..., int]) -> Callable[..., int]:
    return lambda *given, **named: original(*given, **named) + 1


def reverse(original: Callable[..., list[int]]) -> Callable[..., list[int]]:
    return lambda *given, **named: original(*given, **named)[::-1]


def subclass(original: type) -> type:
    return type("Sub", (original,), {})


@pytest.fixture
def lightllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small package of that name, found first; whatever is imported of it is gone afterwards."""
    package = tmp_path / "lightllm"
    package.mkdir()
    for name, text in FILES.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    wraps = types.ModuleType("wraps_of_tests")
    vars(wraps).update(add_one=add_one, reverse=reverse, subclass=subclass)
    monkeypatch.setitem(sys.modules, wraps.__name__, wraps)
    monkeypatch.syspath_prepend(tmp_path)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "lightllm"}
    hooks.uninstall()
    yield package
    hooks.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightllm"]:
        del sys.modules[name]
    sys.modules.update(before)


def use(monkeypatch: pytest.MonkeyPatch, *chosen: Hook) -> None:
    monkeypatch.setattr(hooks, "HOOKS", chosen)


def test_every_hook_and_every_other_name_fits_the_checkout() -> None:
    assert compare(trees.source() / "lightllm", trees.EXPECTATIONS) == []


def test_every_name_taken_from_lightllm_is_among_those_that_are_compared() -> None:
    folder = Path(importlib.import_module("lightspec_lightllm").__file__ or "").parent
    compared = {f"{e.module}:{e.name.partition('.')[0]}" for e in trees.EXPECTATIONS}
    taken = {
        f"{node.module}:{alias.name}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lightllm"
        for alias in node.names
    }
    assert taken
    assert taken - compared == set()


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.target)
def test_every_hook_has_a_wrap_and_a_reason(hook: Hook) -> None:
    module, _, name = hook.wrap.partition(":")
    wrap = getattr(importlib.import_module(module), name)
    assert len(inspect.signature(wrap).parameters) == 1
    assert hook.why


def test_no_two_hooks_have_one_target() -> None:
    assert len({hook.target for hook in HOOKS}) == len(HOOKS)


def test_installing_changes_nothing_until_a_module_is_imported(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DOUBLE, NEXT, SIZES, MAKER)
    hooks.install()
    assert "lightllm" not in sys.modules
    assert hooks.installed() == ()
    shelf = importlib.import_module("lightllm.shelf")
    assert hooks.installed() == (DOUBLE.target, NEXT.target, SIZES.target)
    assert shelf.double(3) == 7
    assert shelf.double(3, times=3) == 10
    assert shelf.Counter(1).next() == 3
    assert shelf.Counter.sizes() == shelf.Counter(1).sizes() == [8, 1]
    user = importlib.import_module("lightllm.user")
    assert user.call(3) == user.twice(3) == 7
    assert type(user.make()).__name__ == "Sub"
    assert type(shelf.Counter(1)).__name__ == "Counter"
    assert hooks.installed()[-1] == MAKER.target


def test_modules_imported_before_are_extended_wherever_the_name_went(
    lightllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, DOUBLE, MAKER)
    user = importlib.import_module("lightllm.user")
    shelf = sys.modules["lightllm.shelf"]
    hooks.install()
    assert shelf.double(3) == user.call(3) == user.twice(3) == 7
    assert user.Counter is not shelf.Counter
    assert shelf.Counter.__name__ == "Counter"


def test_uninstalling_puts_back_the_very_objects(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = importlib.import_module("lightllm.user")
    shelf = sys.modules["lightllm.shelf"]
    before = [dict(vars(module)) for module in (user, shelf)]
    members = dict(vars(shelf.Counter))
    path = list(sys.meta_path)
    use(monkeypatch, DOUBLE, NEXT, SIZES, MAKER)
    hooks.install()
    assert dict(vars(user)) != before[0]
    hooks.uninstall()
    assert [dict(vars(module)) for module in (user, shelf)] == before
    assert dict(vars(shelf.Counter)) == members
    assert sys.meta_path == path
    assert hooks.installed() == ()
    hooks.uninstall()


def test_installing_twice_wraps_once_and_again_after_uninstalling(
    lightllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, DOUBLE)
    shelf = importlib.import_module("lightllm.shelf")
    for _ in range(2):
        hooks.install()
        hooks.install()
        assert shelf.double(3) == 7
        assert len([finder for finder in sys.meta_path if finder is hooks._finder]) == 1
        hooks.uninstall()
        assert shelf.double(3) == 6


def test_two_hooks_of_one_target_nest_and_unwind(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DOUBLE, DOUBLE)
    hooks.install()
    shelf = importlib.import_module("lightllm.shelf")
    assert shelf.double(3) == 8
    assert hooks.original(DOUBLE.target)(3) == 6
    hooks.uninstall()
    assert shelf.double(3) == 6
    assert hooks.original(DOUBLE.target)(3) == 6


def test_a_reloaded_module_is_extended_anew(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DOUBLE)
    hooks.install()
    shelf = importlib.import_module("lightllm.shelf")
    assert importlib.reload(shelf).double(3) == 7


def test_sources_of_extended_modules_can_still_be_read(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DOUBLE)
    hooks.install()
    shelf = importlib.import_module("lightllm.shelf")
    assert "class Counter" in inspect.getsource(shelf)


def test_another_finder_of_the_same_kind_does_not_end_in_a_loop(
    lightllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                    return spec
            return None

    use(monkeypatch, DOUBLE)
    hooks.install()
    monkeypatch.setattr(sys, "meta_path", [Other(), *sys.meta_path])
    assert importlib.import_module("lightllm.shelf").double(3) == 7


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (Hook("lightllm.shelf:Counter.next", "wraps_of_tests:add_one", "(self, by=1)", ""), r"found \(self\)"),
        (Hook("lightllm.shelf:triple", "wraps_of_tests:add_one", "(number)", ""), "nothing of that name"),
        (Hook("lightllm.shelf:Counter.sizes", "wraps_of_tests:reverse", "(largest=8, step=1)", ""), "@staticmethod"),
        (Hook("lightllm.absent:double", "wraps_of_tests:add_one", "(number)", ""), "no file"),
        (Hook("lightllm.shelf:Counter", "wraps_of_tests:subclass", "(self)", ""), "no function"),
    ],
)
def test_one_target_that_does_not_fit_and_nothing_is_touched(
    wrong: Hook, found: str, lightllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = importlib.import_module("lightllm.shelf")
    before, path = shelf.double, list(sys.meta_path)
    use(monkeypatch, DOUBLE, wrong)
    with pytest.raises(HostError, match=found) as caught:
        hooks.install()
    assert wrong.target in str(caught.value)
    assert DOUBLE.target not in str(caught.value)
    assert shelf.double is before
    assert sys.meta_path == path


def test_a_wrap_that_cannot_be_had_undoes_all_that_was_done(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = importlib.import_module("lightllm.shelf")
    before, path = shelf.double, list(sys.meta_path)
    use(monkeypatch, DOUBLE, Hook(NEXT.target, "wraps_of_tests:missing", "(self)", ""))
    with pytest.raises(HostError, match=r"Counter\.next needs wraps_of_tests:missing"):
        hooks.install()
    assert shelf.double is before
    assert sys.meta_path == path
    assert hooks.installed() == ()


def test_a_wrap_that_cannot_be_had_keeps_its_module_from_being_imported(
    lightllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, DOUBLE, Hook(MAKER.target, "absent_module:wrap", None, ""))
    hooks.install()
    shelf = importlib.import_module("lightllm.shelf")
    assert shelf.double(3) == 7
    with pytest.raises(HostError, match="absent_module"):
        importlib.import_module("lightllm.user")
    assert shelf.double(3) == 6


def test_without_lightllm_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if not k.startswith("lightllm")})
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "editable" not in str(f).lower()])
    with pytest.raises(HostError, match="LightLLM is not installed here"):
        hooks.install()


def test_a_generated_constructor_is_looked_for_by_its_class(lightllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert START.expectation == Expectation("lightllm.shelf:Counter")
    use(monkeypatch, Hook("lightllm.shelf:Nothing.__init__", "wraps_of_tests:add_one", None, ""))
    with pytest.raises(HostError, match="Nothing"):
        hooks.install()


def test_signatures_are_found_inside_conditions_and_the_last_one_counts(tmp_path: Path) -> None:
    package = tmp_path / "lightllm"
    package.mkdir()
    (package / "odd.py").write_text(
        """
try:
    from fast import run
except ImportError:
    def run(number: int = 3, /, *rest, key, **more) -> int: ...
if True:
    async def later(self): ...
else:
    def later(other): ...
class Pair:
    first: int
    second: "str" = ""
    third = 3
value, other = 1, 2
named: int = 4
""",
        encoding="utf-8",
    )

    def of(name: str, signature: str | None = None, fields: tuple[str, ...] = ()) -> list[str]:
        return [m.found for m in compare(package, [Expectation(f"lightllm.odd:{name}", signature, fields)])]

    assert of("run", "(number=3, /, *rest, key, **more)") == []
    assert of("later", "(other)") == []
    assert of("later", "(self)") == ["(other)"]
    assert of("Pair", fields=("first", "second")) == []
    assert of("Pair", fields=("third", "first")) == ["first, second"]
    assert of("named") == of("value") == of("other") == []
    assert len(of("Pair.fourth")) == len(of("nothing")) == len(of("named.inner")) == 1


def test_a_file_that_is_no_python_is_a_mismatch(tmp_path: Path) -> None:
    package = tmp_path / "lightllm"
    package.mkdir()
    (package / "bad.py").write_text("def :", encoding="utf-8")
    (mismatch,) = compare(package, [Expectation("lightllm.bad:name")])
    assert "cannot be parsed" in mismatch.found
    assert signatures.module_path(package, "lightllm") == package / "__init__.py"


def test_importing_the_package_changes_nothing() -> None:
    code = (
        "import sys; path = list(sys.meta_path)\n"
        "import lightspec_lightllm.api_server, lightspec_lightllm.adapters.lightllm.launch\n"
        "import lightspec_lightllm.adapters.lightllm.doctor\n"
        "assert sys.meta_path == path, sys.meta_path\n"
        "assert not {'torch', 'lightllm', 'triton'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
