"""Splitting a stream of bytes into events, wherever the network cuts it."""

from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.client.events import EventStream

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=40)


@given(st.lists(LINES, max_size=6), CUTS, st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_their_bytes_are_cut(texts: list[str], cuts: list[int], end: str) -> None:
    raw = "".join(f": ping{end}{end}data: {text}{end}{end}" for text in texts).encode()
    stream, found, at, number = EventStream(), [], 0, 0
    while at < len(raw):
        found += stream.feed(raw[at : at + cuts[number % len(cuts)]])
        at, number = at + cuts[number % len(cuts)], number + 1
    assert found == [text.encode() for text in texts]
    assert stream.end() == []


def test_an_event_of_several_lines_is_one_and_other_fields_are_skipped() -> None:
    stream = EventStream()
    assert stream.feed(b"event: message\nid: 7\ndata: one\ndata:two\n\n\n\n") == [b"one\ntwo"]


def test_what_comes_last_needs_no_empty_line() -> None:
    stream = EventStream()
    assert stream.feed(b"data: [DONE]") == []
    assert stream.end() == [b"[DONE]"]
    assert stream.end() == []
