"""SIGCONT may go to any process of the sender's own session, SIGTERM only to the sender's own (kill(2))."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.boxes.base import Box
from sandbox.boxes.cgroup import CgroupBackend
from sandbox.control.ladder import terminate
from tests.boxes.scene import Scene, ended_by, forked
from tests.support import wait_for

NOBODY = 65534


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(CgroupBackend, tmp_path / "home")
    yield scene
    scene.close()


def state(pid: int) -> str:
    """The state letter of proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stopped(scene: Scene, box: Box, uid: int) -> int:
    """A process of `uid` in the box and in our session, in SIGSTOP."""
    child = scene.start(box, ["sleep", "900"], (("be another user", lambda: os.setresuid(uid, uid, uid)),))
    child.release()
    wait_for(lambda: b"sleep" in Path(f"/proc/{child.pid}/cmdline").read_bytes())
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: state(child.pid) == "T")
    return child.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of another user takes root")
@pytest.mark.bed("host", "nspawn")
def test_what_may_not_be_terminated_is_not_continued_either(scene: Scene) -> None:
    box = scene.create()
    for path in Path(box.cgroup or "").parents[:2]:
        path.chmod(0o755)  # what ran here before may have changed it, which keeps out no one but NOBODY
    theirs, own = stopped(scene, box, 0), stopped(scene, box, NOBODY)
    assert os.getsid(theirs) == os.getsid(own) == os.getsid(0)

    def as_nobody() -> None:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.kill(theirs, signal.SIGCONT)  # it may: not sending it is what is asked
        wait_for(lambda: state(theirs) == "S")

    def abort() -> None:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        terminate([(scene.backend, box)])

    for act, done in ((abort, lambda: state(own) == "Z"), (as_nobody, lambda: state(theirs) == "S")):
        sender = forked(act)
        try:
            wait_for(done)
            assert act is as_nobody or state(theirs) == "T"
        finally:
            os.kill(sender, signal.SIGKILL)
            os.waitpid(sender, 0)
    assert [ended_by(child) for child in scene.children if child.pid == own] == [-signal.SIGTERM]
    assert scene.backend.kill(box, time.monotonic() + 10) == "empty"
