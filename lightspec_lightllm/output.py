"""Where a command's files go."""

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lightspec_lightllm.errors import ConfigError


@dataclass(frozen=True)
class OutputFolder:
    """A folder and the common stem of one run's files. Files that exist are never written over."""

    stem: Path

    @classmethod
    def open(cls, folder: Path, date: datetime, *, prefix: str = "bench") -> "OutputFolder":
        """Raises ConfigError when the folder cannot be made or written: before measuring, not after."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(f"--out: cannot write into {folder} ({error.strerror}); give another folder") from None
        name = date.strftime(f"{prefix}-%Y%m%d-%H%M%S")
        taken = [name, *(f"{name}-{number}" for number in range(2, 100))]
        return cls(folder / next(stem for stem in taken if not list(folder.glob(f"{stem}.*"))))

    def path(self, ending: str) -> Path:
        return self.stem.with_name(self.stem.name + ending)

    def write(self, ending: str, content: str) -> Path:
        with self.path(ending).open("x", encoding="utf-8") as file:
            file.write(content)
        return self.path(ending)

    def write_bytes(self, ending: str, content: bytes) -> Path:
        with self.path(ending).open("xb") as file:
            file.write(content)
        return self.path(ending)
