"""Text of a hostile agent in a report: it stays text, in a terminal and in a page."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.harness import beat
from sandbox.report.calls import add_calls
from sandbox.report.escape import esc
from sandbox.report.model import TaskReport, Time, plain
from sandbox.report.page import page
from sandbox.report.text import told
from tests.report.samples import sample

NASTY = (
    "</script><script>alert(1)</script>",
    "</style><style>*{display:none}",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- --> <![CDATA[ ]]> &lt;&#60;&amp",
    "javascript:alert(1) url(https://example.invalid/x) @import 'x'",
    "\u202egpj.exe\u202c \u2066\u2069 \u200b\u200f\ufeff\u2028\u2029",
    "\x1b[2J\x1b]0;title\x07\x1b]8;;file:///etc/passwd\x07link\r\b\x9b31m\x00",
    "ä́̈̃" * 50 + "שלום مرحبا",
    "\udcff\ud800 \U0010ffff \ufffe",
    "x" * 100_000,
    "{{7*7}} ${7*7} %s %(a)s {0}",
)
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer", "h1", "h2", "h3", "p"),
    *("ul", "li", "dl", "div", "dt", "dd", "figure", "figcaption", "bdi", "b", "code", "span", "svg", "rect"),
    *("details", "summary", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "style", "title", "viewbox", "role", "open"),
    *("preserveaspectratio", "aria-label", "aria-hidden", "x", "y", "width", "height"),
}
STYLE = re.compile(r"--(at|row|rows):[0-9.]+(;--(at|row|rows):[0-9.]+)*")


class Reader(HTMLParser):
    """Reads a page and fails on what no page of ours has; `text`: all that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            assert name != "style" or STYLE.fullmatch(value or ""), value
            self.text += value or ""
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect", tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def read(html: str) -> Reader:
    found = Reader()
    found.feed(html)
    found.close()
    assert found.open == [], "each element is closed"
    return found


def harmless(text: str) -> bool:
    """No control character, no direction control, nothing invisible, no lone surrogate; line ends are ours."""
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in text)


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_nasty_text_stays_text(text: str) -> None:
    found = sample(2, text=text)
    html = page(found)
    seen = read(html)
    assert harmless(seen.text)
    html.encode("utf-8")
    shown = told(found)
    assert harmless(shown) and max(map(len, shown.splitlines())) < 1000
    shown.encode("utf-8")
    assert json.loads(json.dumps(plain(found)))["run_id"] == "r1"


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None), max_size=60))
def test_any_text_stays_text(text: str) -> None:
    assert harmless(read(f"<p title='{esc(text)}'>{esc(text)}</p>").text)
    found = sample(1, text=text or "-", length=20)
    assert harmless(read(page(found)).text) and harmless(told(found))


def test_the_page_asks_nothing_of_anybody() -> None:
    html = page(sample(2))
    assert not re.search(r"(src|href|action|url)\s*[=(]|@import|https?:|<script|<link|<iframe", html)
    assert "default-src 'none'" in html and "prefers-color-scheme: dark" in html


@pytest.mark.parametrize("tasks", [0, 1, 2, 64])
def test_from_no_task_to_many(tasks: int) -> None:
    html = page(sample(tasks, names="a-name-that-is-as-long-as-any-id-may-be-and-that-fills-every-c"[:60]))
    read(html)
    assert html.count('class="lane"') == tasks and html.count("<details") == tasks
    assert len(html) < 2_000_000


def test_half_a_day_of_short_calls_is_a_page_of_bearable_size() -> None:
    found = sample(8, length=43_200.0)
    assert sum(len(task.calls) for task in found.tasks) > 30_000
    html = page(found)
    assert len(html) < 3_000_000 and "Around the stop" in html


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=400)
    | st.text(st.sampled_from("0123456789.- callquietkstopnainf\n"), max_size=400).map(str.encode)
)
def test_marks_of_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("beat") / "b"
    path.write_bytes(raw)
    task = TaskReport("t", "exited", [], stopped_at=Time(1e9))
    add_calls(task, str(path))
    found = beat.read(str(path), 64)
    assert all(0 <= mark.at < beat.LATEST and mark.tokens >= 0 for mark in found.marks)
    assert all(str(call.began or call.ended) for call in task.calls)


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "missing"])
def test_what_stands_in_the_place_of_marks_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "real").write_text("1 call 1 x 0\n")
        path.symlink_to(tmp_path / "real")
    elif kind == "directory":
        path.mkdir()
    assert beat.read(str(path)).marks == []


def test_only_the_end_of_long_marks_is_read_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_text("".join(f"{number}.000 call 1 c{number} 0\n" for number in range(1000, 2000)))
    found = beat.read(str(path), 200)
    assert found.cut == path.stat().st_size - 200 and found.bad == 0
    assert [mark.name for mark in found.marks][-1] == "c1999" and 5 < len(found.marks) < 12


CALLS = st.lists(st.tuples(st.sampled_from(["call", "tick", "quiet", "stop"]), st.sampled_from("abc")), max_size=30)


@given(CALLS)
def test_each_mark_is_in_one_call(tmp_path_factory: pytest.TempPathFactory, marks: list[tuple[str, str]]) -> None:
    """As many calls begin and end as were marked, an end never before its beginning, in flight is what has no end."""
    path = tmp_path_factory.mktemp("beat") / "b"
    path.write_text("".join(f"{1000 + at}.000 {word} 1 {name} 1\n" for at, (word, name) in enumerate(marks)))
    task = TaskReport("t", "exited", [], stopped_at=Time(2000))
    add_calls(task, str(path))
    words = [word for word, _ in marks]
    assert sum(call.began is not None for call in task.calls) == words.count("call")
    assert len(task.finished) == words.count("tick")
    assert all(call.began is None or call.ended is None or call.began < call.ended for call in task.calls)
    assert len(task.in_flight) == sum(call.ended is None for call in task.calls)
    assert len(task.holds) == words.count("quiet")
