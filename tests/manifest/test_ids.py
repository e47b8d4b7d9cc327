"""What may be an id, and which run a short form means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import NO_SUCH_RUN, USAGE, AgentboxError
from sandbox.manifest.ids import check_id, is_id, new_run_id, select

BAD = ["", ".", "..", "/", "a/b", "a\n", "a\nb", "-rf", "_a", "a b", "é", "a" * 64, "a\x00", "٣", "a\udcff", ".a"]
GOOD = ["a", "0", "r20260913-0940", "A.b_c-d", "a" * 63, "a..b", "a-"]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_id_is_refused_in_one_printable_line(text: str) -> None:
    with pytest.raises(AgentboxError) as caught:
        check_id(text, "run id")
    line = str(caught.value)
    assert line.startswith("run id ") and line.isprintable() and len(line) < 250


@pytest.mark.parametrize("text", GOOD)
def test_what_is_an_id_comes_back(text: str) -> None:
    assert check_id(text, "task id") == text


def test_a_long_id_is_cut_in_the_error() -> None:
    with pytest.raises(AgentboxError) as caught:
        check_id("x" * 100_000, "run id")
    assert len(str(caught.value)) < 250


def test_new_ids_are_ids_of_the_known_shape() -> None:
    ids = {new_run_id() for _ in range(50)}
    assert len(ids) > 45
    assert all(is_id(made) and re.fullmatch(r"r\d{8}-\d{6}-[a-z2-9]{4}", made) for made in ids)


def test_an_exact_id_wins_over_a_longer_one() -> None:
    assert select("demo-1", ["demo-10", "demo-1", "demo-11"]) == "demo-1"


def test_a_unique_prefix_selects() -> None:
    assert select("dem", iter(["demo-1", "other"])) == "demo-1"


def test_an_ambiguous_prefix_lists_the_candidates() -> None:
    with pytest.raises(AgentboxError) as caught:
        select("demo", ["demo-2", "demo-1", "x"])
    assert caught.value.code == USAGE
    assert "demo-1, demo-2" in str(caught.value) and "x" not in str(caught.value).split("demo-2")[1].split(";")[0]


def test_many_candidates_are_counted() -> None:
    with pytest.raises(AgentboxError, match="and 90 more"):
        select("r", [f"r{number:03}" for number in range(100)])


def test_a_dot_is_a_dot() -> None:
    assert select("a.b", ["axb", "a.b"]) == "a.b"
    with pytest.raises(AgentboxError) as caught:
        select("a.b", ["axb"])
    assert caught.value.code == NO_SUCH_RUN


@pytest.mark.parametrize("text", BAD)
def test_nothing_is_selected_by_what_is_no_id(text: str) -> None:
    with pytest.raises(AgentboxError) as caught:
        select(text, ["a", "b", "."])
    assert caught.value.code == USAGE


def test_no_such_run_has_its_own_code() -> None:
    with pytest.raises(AgentboxError) as caught:
        select("nope", ["a"])
    assert caught.value.code == NO_SUCH_RUN and "no such run" in str(caught.value)


@given(st.text(max_size=80))
def test_an_id_is_always_one_name_in_one_directory(text: str) -> None:
    if is_id(text):
        assert text not in (".", "..") and "/" not in text and text.isascii() and text.isprintable()
