"""Where the state lives, who may read it, and what is said where it can't live there."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home

NOBODY = 65534

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def as_uid(uid: int, act: Callable[[], object]) -> str:
    """What `act` gives, or the error that it raises, in a process of that user."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            told = str(act())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(into, told.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


@pytest.fixture
def hard_umask() -> Iterator[None]:
    before = os.umask(0o777)
    yield
    os.umask(before)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_variable_wins() -> None:
    assert Home.locate({"AGENTBOX_HOME": "/x/y/", "XDG_STATE_HOME": "/s"}).path == "/x/y"


def test_a_relative_variable_is_refused() -> None:
    with pytest.raises(AgentboxError, match="absolute"):
        Home.locate({"AGENTBOX_HOME": "state"})


@root_only
def test_root_has_its_place() -> None:
    assert Home.locate({"HOME": "/root", "AGENTBOX_HOME": ""}).path == "/var/lib/agentbox"


@root_only
@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/agentbox"),
        ({"XDG_STATE_HOME": "rel", "HOME": "/h"}, "/h/.local/state/agentbox"),
        ({"HOME": "/h"}, "/h/.local/state/agentbox"),
        ({}, f"{pwd.getpwuid(NOBODY).pw_dir}/.local/state/agentbox"),
        ({"HOME": ""}, f"{pwd.getpwuid(NOBODY).pw_dir}/.local/state/agentbox"),
    ],
)
def test_a_plain_user_has_the_xdg_place(env: dict[str, str], path: str) -> None:
    assert as_uid(NOBODY, lambda: Home.locate(env).path) == path


@root_only
def test_a_user_without_any_home_is_told_what_to_set() -> None:
    told = as_uid(54321, lambda: Home.locate({}).path)
    assert told.startswith("AgentboxError: ") and "AGENTBOX_HOME" in told and "54321" in told


def test_directories_are_private_whatever_the_umask(tmp_path: Path, hard_umask: None) -> None:
    home = Home(str(tmp_path / "home")).ensure()
    run = home.run_dir("r1").create()
    for directory in (home.path, f"{home.path}/runs", run.path, run.ctl, f"{run.path}/ctl/tasks"):
        assert mode(directory) == 0o700
    for part in ("beat", "steer", "out"):
        assert mode(f"{run.path}/{part}") == 0o700


def test_ensure_twice_is_fine_and_leaves_a_mode_of_the_owners_alone(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    home.ensure()
    os.chmod(home.path, 0o755)
    home.ensure()
    assert mode(home.path) == 0o755


def test_a_home_that_others_can_write_is_refused(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    os.mkdir(home.path)
    os.chmod(home.path, 0o1777)
    with pytest.raises(AgentboxError, match="chmod go-w"):
        home.ensure()


@pytest.mark.parametrize("name", ["home", "home/runs"])
def test_a_file_in_the_way_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    with pytest.raises(AgentboxError, match="move the file in its way") as caught:
        Home(str(tmp_path / "home")).ensure()
    assert "\n" not in str(caught.value)


def test_a_home_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentboxError, match="move the file in its way"):
        Home(str(tmp_path / "file" / "home")).ensure()


@root_only
def test_a_home_that_is_not_mine_is_named() -> None:
    # Below /tmp itself: pytest's own directories let no other user in.
    with tempfile.TemporaryDirectory() as top:
        home = Home(f"{top}/home").ensure()
        for path in (top, home.path, f"{home.path}/runs"):
            os.chmod(path, 0o755)
        told = as_uid(NOBODY, home.ensure)
    assert told.startswith("AgentboxError: ") and "Permission denied" in told and "AGENTBOX_HOME" in told


def test_only_directories_with_the_name_of_an_id_are_runs(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    assert home.runs() == []
    home.ensure()
    home.run_dir("b").create()
    home.run_dir("a").create()
    runs = Path(home.path) / "runs"
    (runs / ".hidden").mkdir()
    (runs / "a b").mkdir()
    (runs / "file").write_text("")
    (runs / "link").symlink_to(runs / "a")
    (runs / ("x" * 64)).mkdir()
    assert home.runs() == ["a", "b"]


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home")).ensure()
    home.run_dir("a").create()
    with pytest.raises(AgentboxError, match="run id a is taken") as caught:
        home.run_dir("a").create()
    assert "choose another --run-id" in str(caught.value)


def test_no_path_leaves_the_home(tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    for bad in ("..", ".", "", "a/b", "/etc"):
        with pytest.raises(AgentboxError):
            home.run_dir(bad)
        for path in (home.run_dir("r").task_order, home.run_dir("r").beat, home.run_dir("r").out):
            with pytest.raises(AgentboxError, match="task id"):
                path(bad)


def test_the_paths_are_those_of_the_layout() -> None:
    home = Home("/h")
    run = home.run_dir("r")
    assert home.emergency_stop == "/h/EMERGENCY_STOP"
    assert run.manifest == "/h/runs/r/manifest.jsonl"
    assert (run.control, run.task_order("t")) == ("/h/runs/r/ctl/control", "/h/runs/r/ctl/tasks/t")
    assert (run.beat("t"), run.steer("t")) == ("/h/runs/r/beat/t", "/h/runs/r/steer/t.jsonl")
    assert run.out("t") == "/h/runs/r/out/t.log"


def test_a_run_that_can_not_be_made_whole_is_not_left_half_made(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home")).ensure()
    run = home.run_dir("a" * 63)
    # A path that fits by itself and not with its parts: PATH_MAX is 4096 (path_resolution(7)).
    deep = Home(home.path + "/." * ((4096 - len(run.path) - 6) // 2)).run_dir("a" * 63)
    with pytest.raises(AgentboxError, match="too long"):
        deep.create()
    assert home.runs() == []
