"""Server-sent events out of the pieces in which a response arrives."""

DONE = b"[DONE]"
"""What OpenAI's API sends as the last event of a stream."""


class EventStream:
    """Splits bytes into the data of events. An event ends at an empty line; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that ``piece`` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return self._take(lines)

    def end(self) -> list[bytes]:
        """What a stream that has ended without an empty line still holds."""
        lines, self._rest = [self._rest, b""], b""
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[bytes]:
        found = []
        for ended in lines:
            line = ended.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found
