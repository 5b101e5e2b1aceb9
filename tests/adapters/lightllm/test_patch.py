"""The patch: adds lines only, fits one commit, and refuses every other tree by the name of its file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightspec_lightllm.adapters.lightllm import patching, signatures
from lightspec_lightllm.adapters.lightllm.patching import PATCH, apply, read_patch, revert, state
from lightspec_lightllm.cli import main
from lightspec_lightllm.errors import HostError
from tests.adapters.lightllm import trees

ADDITION = read_patch()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that the patch fits, with nothing else in it."""
    path = tmp_path / ADDITION.file
    path.parent.mkdir(parents=True)
    path.write_text(ADDITION.before, encoding="utf-8")
    return tmp_path


def test_it_adds_at_most_30_lines_to_one_file_and_says_why_and_where_it_fits() -> None:
    assert ADDITION.after.startswith(ADDITION.before)
    assert ADDITION.after.count("\n") - ADDITION.before.count("\n") <= 30
    preface = PATCH.read_text(encoding="utf-8").partition("--- a/")[0]
    assert signatures.COMMIT in preface
    assert ADDITION.file in preface
    assert len(list(PATCH.parent.glob("*.patch"))) == 1


def test_it_fits_the_checkout() -> None:
    assert state(trees.source(), ADDITION) == "absent"


def test_it_is_applied_once_and_reverted_to_the_same_bytes(tree: Path) -> None:
    path = tree / ADDITION.file
    path.chmod(0o640)
    assert state(tree, ADDITION) == "absent"
    assert [apply(tree, ADDITION) for _ in range(2)] == ["absent", "applied"]
    assert state(tree, ADDITION) == "applied"
    assert path.read_text(encoding="utf-8") == ADDITION.after
    assert [revert(tree, ADDITION) for _ in range(2)] == ["applied", "absent"]
    assert path.read_bytes() == ADDITION.before.encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_git_applies_it_as_well(tree: Path) -> None:
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    subprocess.run(["git", "apply", str(PATCH)], cwd=tree, check=True, env=outside)  # noqa: S607
    assert state(tree, ADDITION) == "applied"


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        (f"{ADDITION.before}import os\n", "line 5 to be ''", "'import os'"),
        (ADDITION.before.replace("is_musa()", "is_rocm()"), "line 3", "is_rocm"),
        (ADDITION.after.replace("plugin.load()()", "pass"), "plugin.load()()", "pass"),
        (ADDITION.before.replace("\n", "\r\n"), "line 1", "\\r"),
        ("", "line 1", "''"),
        (ADDITION.before[:-1], "line 5 to be ''", "the end of the file"),
    ],
    ids=["longer", "older", "half reverted", "other line ends", "empty", "no last line end"],
)
def test_a_tree_that_it_does_not_fit_is_refused_by_name_and_left_alone(
    text: str, expected: str, found: str, tree: Path
) -> None:
    path = tree / ADDITION.file
    path.write_bytes(text.encode())
    for action in (state, apply, revert):
        with pytest.raises(HostError) as caught:
            action(tree, ADDITION)
        message = str(caught.value)
        assert str(path) in message
        assert expected in message
        assert found in message
    assert path.read_bytes() == text.encode()


def test_a_folder_without_lightllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="is no LightLLM tree"):
        state(tmp_path, ADDITION)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines added to the end of one file"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "expected added lines only"),
        ("--- a/x\n+++ b/x\n@@ -5,1 +5,2 @@\n a\n+b\n", "expected lines added to the end of one file"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n a\n+b\n c\n", "expected lines added to the end of one file"),
    ],
)
def test_a_patch_of_another_kind_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.patch"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HostError, match=message):
        read_patch(path)
    with pytest.raises(HostError, match="cannot be read"):
        read_patch(tmp_path / "nowhere.patch")


def test_the_command_says_what_it_did(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for action in ("--check", "--apply", "--apply", "--check", "--revert", "--revert"):
        assert main(["patch", action, str(tree)]) == 0
        said.append(capsys.readouterr().out.strip().rpartition(": ")[2])
    assert said == [
        "the patch fits",
        "applied",
        "the patch was applied already",
        "the patch is applied",
        "reverted",
        "the patch was not applied",
    ]
    assert main(["patch", "--check", str(tree / "lightllm")]) == 2
    assert "is no LightLLM tree" in capsys.readouterr().err
    assert main(["patch", str(tree)]) == 2


def test_patched_code_loads_the_plugins_that_are_installed_and_none_when_told_so(tree: Path) -> None:
    apply(tree, ADDITION)
    utils = tree / "lightllm" / "utils"
    utils.mkdir()
    (utils / "device_utils.py").write_text("def is_musa():\n    return False\n", encoding="utf-8")
    info = tree / "plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: plugin\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[lightllm.plugins]\nplugin = plugin:load\n", encoding="utf-8")
    (tree / "plugin.py").write_text("def load():\n    print('loaded')\n", encoding="utf-8")
    for disabled, printed in (("", ["loaded"]), ("1", [])):
        env = {"PYTHONPATH": str(tree), "LIGHTLLM_DISABLE_PLUGINS": disabled, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", "import lightllm"], env=env, capture_output=True, text=True, check=False
        )
        assert [line for line in done.stdout.splitlines() if line == "loaded"] == printed
        assert done.returncode == 0, done.stderr


def test_the_wheel_carries_it() -> None:
    pyproject = (PATCH.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"patches/{PATCH.name}" = "lightspec_lightllm/patches/{PATCH.name}"' in pyproject
    assert patching.PATCH.is_file()
