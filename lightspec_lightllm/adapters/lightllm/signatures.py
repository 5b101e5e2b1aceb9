"""What this package relies on in LightLLM, compared with the source, which is read and never imported.

A signature is written without annotations, the decorators that matter in front: ``@staticmethod (size=8, world=1)``.
The same comparison decides at start (`hooks.install`) and in ``lightspec doctor``, which so needs no GPU and no torch.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lightspec_lightllm.errors import HostError

COMMIT = "87881ae"
VERSION = "1.2.0"
"""The LightLLM that this package was written for."""

_DECORATORS = ("staticmethod", "classmethod", "property")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must be as it is written here.

    Attributes:
        target: ``module:name`` or ``module:Class.name``.
        signature: of a function; None: the name must exist, whatever it is.
        fields: attributes that a class's body must annotate.
    """

    target: str
    signature: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Dotted name of the module."""
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """Name inside the module, dotted for a member of a class."""
        return self.target.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One expectation that the source does not meet."""

    target: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.target}: expected {self.expected}, found {self.found}"


def package_folder() -> Path:
    """The folder ``lightllm/`` that Python would import, found without importing it.

    Raises:
        HostError: there is none.
    """
    try:
        spec = importlib.util.find_spec("lightllm")
    except ValueError:  # a module of this name without a spec
        spec = None
    if spec is None or spec.origin is None:
        raise HostError(
            f"LightLLM is not installed here: expected the package lightllm {VERSION}, of commit {COMMIT}; install "
            "it into this environment or put its checkout on PYTHONPATH"
        )
    return Path(spec.origin).parent


def compare(package: Path, expectations: Iterable[Expectation]) -> list[Mismatch]:
    """Every expectation that the package at this folder does not meet."""
    return [mismatch for expected in expectations if (mismatch := _compare(package, expected)) is not None]


def _compare(package: Path, expected: Expectation) -> Mismatch | None:
    wanted = expected.signature or "the name"
    path = module_path(package, expected.module)
    try:
        tree = _parse(path, path.stat().st_mtime_ns)
    except OSError:
        return Mismatch(expected.target, wanted, f"no file {path}")
    except (SyntaxError, ValueError) as error:
        return Mismatch(expected.target, wanted, f"{path}, which cannot be parsed: {error}")
    node = _find(tree, expected.name)
    if node is None:
        return Mismatch(expected.target, wanted, f"nothing of that name in {path}")
    if expected.signature is not None:
        found = signature_of(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "no function"
        if found != expected.signature:
            return Mismatch(expected.target, wanted, found)
    if expected.fields:
        found_fields = _fields(node)
        if absent := [name for name in expected.fields if name not in found_fields]:
            return Mismatch(expected.target, f"the fields {', '.join(absent)}", ", ".join(found_fields) or "none")
    return None


def module_path(package: Path, module: str) -> Path:
    """The file of a module of the package ``lightllm`` at this folder."""
    path = package.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's signature as this module writes it."""
    arguments = copy.deepcopy(node.args)
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    kinds = [d.id for d in node.decorator_list if isinstance(d, ast.Name) and d.id in _DECORATORS]
    return " ".join([*(f"@{kind}" for kind in kinds), f"({ast.unparse(arguments)})"])


@lru_cache(maxsize=64)
def _parse(path: Path, _changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _find(tree: ast.Module, name: str) -> ast.AST | None:
    """What defines a name at the top of a module, or of a class for a dotted one; the last definition counts."""
    scope: ast.AST | None = tree
    for part in name.split("."):
        body = scope.body if isinstance(scope, ast.Module | ast.ClassDef) else []
        found = [node for node in _statements(body) if part in _names(node)]
        scope = found[-1] if found else None
    return scope


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, those inside its conditions and attempts too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement defines in its own scope."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [
        name.id for target in targets if target is not None for name in ast.walk(target) if isinstance(name, ast.Name)
    ]


def _fields(node: ast.AST) -> list[str]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [name for statement in body if isinstance(statement, ast.AnnAssign) for name in _names(statement)]
