"""Every round in a file, a line of JSON each."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.server.listener import Listener
from lightspec_lightllm.server.messages import Report

logger = logging.getLogger(__name__)


class TraceFile(Listener):
    """Appends until the file can no longer be written; then says so once, and the server goes on without it.

    Raises ConfigError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: TextIO | None = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--trace: cannot write {path} ({error.strerror}); give another file") from None

    @property
    def active(self) -> bool:
        return self._file is not None

    def report(self, report: Report) -> None:
        if self._file is None:
            return
        try:
            self._file.writelines(json.dumps(asdict(event), separators=(",", ":")) + "\n" for event in report.rounds)
            self._file.flush()
        except OSError as error:
            logger.error(  # noqa: TRY400 - where it happened is in the line
                "the trace ends here: cannot write %s (%s); serving goes on", self.path, error.strerror
            )
            self.close()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                logger.warning("the last lines of %s were not written", self.path)
