"""Containers from the command line, beside runs of another backend, also while the engine does not answer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.beds.dockerd import IMAGE
from tests.docker.conftest import Lab
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

pytestmark = pytest.mark.bed("dockerd")

SLEEP = ("sleep", "900")


def run(lab: Lab, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """`agentbox run --image` in the foreground, in the lab's folder."""
    return agentbox("run", "--image", IMAGE, *words, home=lab.home, cwd=lab.work, **more)


def detached(lab: Lab, run_id: str, *command: str, image: bool = True) -> None:
    kind = ["--image", IMAGE] if image else ["--backend", "cgroup"]
    argv = ["run", "-d", "--run-id", run_id, *kind, "--", *command]
    done = agentbox(*argv, home=lab.home, cwd=lab.work, check=0)
    assert done.stdout == f"{run_id}\n"


def ps(lab: Lab) -> dict[str, dict[str, Any]]:
    """What `ps` shows, by run id."""
    rows: list[dict[str, Any]] = json.loads(agentbox("ps", "--json", home=lab.home, check=0).stdout)
    return {row["run_id"]: row for row in rows}


def reconcile(lab: Lab) -> tuple[int, dict[str, Any]]:
    done = agentbox("reconcile", "--json", home=lab.home)
    return done.returncode, json.loads(done.stdout)


@contextmanager
def hung(lab: Lab) -> Iterator[None]:
    """The engine takes connections and answers none."""
    pid = lab.dockerd.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def gone(lab: Lab) -> Iterator[None]:
    """The daemon is dead, its containers live on."""
    lab.dockerd.kill()
    try:
        yield
    finally:
        lab.dockerd.start()


# one run


def test_stdin_stdout_and_status(lab: Lab) -> None:
    done = run(lab, "--", "md5sum", stdin="foo\n")
    assert (done.returncode, done.stdout) == (0, "d3b07384d113edec49eaa6238ad5ff00  -\n")
    assert done.stderr.count("\n") == 1
    assert "(docker); stop it with: agentbox kill" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "sh", "-c", "exit 3"], 3),
        (["--timeout", "2s", "--", "sleep", "900"], 124),
        (["--", "no-such-command"], 127),
        (["--", "/tmp"], 126),
    ],
)
def test_the_exit_status_is_the_documented_one(lab: Lab, words: list[str], code: int) -> None:
    assert run(lab, *words).returncode == code


def test_binary_output_and_a_slow_reader(lab: Lab) -> None:
    data = os.urandom(1 << 20)
    (lab.work / "data").write_bytes(data)
    argv = agentbox_argv("run", "--image", IMAGE, "--", "cat", *["data"] * 8)
    slow = ["sh", "-c", '"$@" | { sleep 3; sha256sum; }', "sh", *argv]
    done = subprocess.run(slow, capture_output=True, env=agentbox_env(lab.home), cwd=lab.work, timeout=120)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data * 8).hexdigest()


def test_a_killed_run_is_137_for_each_who_waits(lab: Lab, stranger: str) -> None:
    run_id = lab.new_id()
    detached(lab, run_id, "sh", "-c", "setsid sleep 900 & sleep 900")
    waiting = subprocess.Popen(agentbox_argv("wait", run_id), env=agentbox_env(lab.home))
    stopped = agentbox("kill", "--json", run_id, home=lab.home, check=0)
    (receipt,) = json.loads(stopped.stdout)
    assert receipt["proof"] == "empty"
    assert len([one for one in receipt["processes"] if one["argv"] == ["sleep", "900"]]) == 2
    assert waiting.wait(30) == 137
    assert lab.state(run_id) == "exited", "it is kept, to be looked at"
    assert agentbox("kill", run_id, home=lab.home).returncode == 0, "a second time"


def test_the_box_is_closed_unless_opened(lab: Lab) -> None:
    script = (
        "grep -E '^(CapEff|NoNewPrivs):' /proc/self/status; id -u; "
        "touch /x 2>/dev/null && echo root-written; echo x > $AGENTBOX_CONTROL || echo order-kept; "
        "echo x >> $AGENTBOX_BEAT && echo beaten; echo y > made; ls /var/run/docker.sock"
    )
    done = run(lab, "--read-only", "--", "sh", "-c", script)
    words = done.stdout.split()
    assert words == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", str(os.getuid()), "order-kept", "beaten"]
    assert (lab.work / "made").stat().st_uid == os.getuid()
    opened = run(lab, "--cap-add", "NET_ADMIN", "--docker-sock", "--", "sh", "-c", script).stdout
    assert f"{1 << 12:016x}" in opened
    assert "root-written" in opened
    assert "/var/run/docker.sock" in opened


def test_a_variable_passed_by_name_is_in_the_container_alone(lab: Lab) -> None:
    run_id = lab.new_id()
    words = ["--run-id", run_id, "--env", "SECRET_THING", "--", "sh", "-c", "echo $SECRET_THING; echo $OTHER_THING"]
    done = run(lab, *words, env={"SECRET_THING": "canary-123", "OTHER_THING": "canary-456"})
    assert done.stdout == "canary-123\n\n"
    (listed,) = lab.containers(run_id)
    assert "canary" not in json.dumps(listed)
    files = [path for path in Path(lab.home).rglob("*") if path.is_file()]
    assert not [path for path in files if b"canary" in path.read_bytes()]


# what can't be had: one line and 125


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "no-such/image"], "no image no-such/image"),
        (["--mount", "nonsense"], "bad mount"),
        (["--mount", "/no/such/place:/x"], "/no/such/place"),
        (["--network", "no-such-network"], "no-such-network"),
        (["--memory", "1g"], "--memory cannot be applied"),
        (["--cap-add", "NO_SUCH_CAP"], "NO_SUCH_CAP"),
        (["--user", "no-such-user"], "no-such-user"),
        (["--workdir", "relative/path"], "relative/path"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_125(lab: Lab, words: list[str], said: str) -> None:
    run_id = lab.new_id()
    done = run(lab, "--run-id", run_id, *words, "--", "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("agentbox: ")
    assert said in done.stderr
    assert ";" in done.stderr, "and what to do"
    assert lab.containers(run_id) == []
    assert ps(lab) == {}


# runs of two backends, and an engine that fails


def test_runs_of_each_backend_are_listed_and_killed_together(lab: Lab, stranger: str) -> None:
    inside, plain = lab.new_id(), lab.new_id()
    detached(lab, inside, *SLEEP)
    detached(lab, plain, *SLEEP, image=False)
    found = ps(lab)
    assert {run_id: (row["state"], row["backend"]) for run_id, row in found.items()} == {
        inside: ("running", "docker"),
        plain: ("running", "cgroup"),
    }
    assert found[inside]["processes"] == 2, "the command and the engine's init"
    assert reconcile(lab)[0] == 0
    done = agentbox("kill", "--all", "--json", home=lab.home, check=0)
    assert {one["run_id"]: one["proof"] for one in json.loads(done.stdout)} == {inside: "empty", plain: "empty"}
    wait_for(lambda: ps(lab) == {}, 20)
    assert reconcile(lab)[0] == 0


@pytest.mark.parametrize("how", [hung, gone])
def test_without_an_answer_of_the_engine_the_others_are_stopped(lab: Lab, how: Any) -> None:
    inside, plain = lab.new_id(), lab.new_id()
    beat = lab.work / "beat"
    detached(lab, inside, "sh", "-c", "while :; do echo x >> beat; sleep .05; done")
    detached(lab, plain, *SLEEP, image=False)
    wait_for(beat.exists)
    with how(lab):
        before = ps(lab)
        assert before[plain]["state"] == "running"
        assert before[inside]["state"] == "running", "its cgroup tells without the engine"
        done = agentbox("kill", "--all", "--json", home=lab.home, timeout=120)
        assert done.returncode == 1, "not proven for all"
        proofs = {one["run_id"]: one["proof"] for one in json.loads(done.stdout)}
        assert proofs == {inside: "unknown", plain: "empty"}
        size = beat.stat().st_size
        after = ps(lab)
        assert list(after) == [inside]
        assert after[inside]["state"] == "unknown"
        assert "docker" in after[inside]["why"]
        code, seen = reconcile(lab)
        assert code == 2
        assert "containers" in [one["observer"] for one in seen["not_asked"]]
        assert beat.stat().st_size == size, "dead by its cgroup all the same"
    agentbox("kill", inside, home=lab.home, check=0)
    assert agentbox("wait", inside, home=lab.home).returncode == 137
    assert ps(lab) == {}


def test_a_restart_policy_set_from_outside_is_taken_off_and_told(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    detached(lab, run_id, *SLEEP)
    name = lab.containers(run_id)[0]["Id"]
    api.update_container(name, restart_policy={"Name": "always"})
    done = agentbox("kill", run_id, home=lab.home, check=0)
    assert "restart policy always" in done.stderr
    assert api.inspect_container(name)["HostConfig"]["RestartPolicy"]["Name"] == "no"
