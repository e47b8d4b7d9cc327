"""A machine on which agentbox can't do what it is asked: one line with the repair, the documented status.

A table of surroundings, each a way to start agentbox, times the verbs. A verb that a surrounding does not
name must work in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.beds import space
from tests.cli.runs import Done, gone, one_line, pids_of, row, start
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

VERBS = {
    "run": ("run", "--", "true"),
    "run-d": ("run", "-d", "--", "true"),
    "spawn": ("spawn", "nosuch", "--", "true"),
    "wait": ("wait", "nosuch"),
    "kill": ("kill", "nosuch"),
    "kill-all": ("kill", "--all"),
    "abort": ("abort", "nosuch"),
    "ps": ("ps",),
    "ps-json": ("ps", "-a", "--json"),
    "inspect": ("inspect", "nosuch"),
    "tree": ("tree", "nosuch"),
    "logs": ("logs", "nosuch"),
    "manifest": ("manifest",),
    "verify": ("verify", "nosuch"),
}
UNKNOWN = {"kill": 3, "abort": 3, "inspect": 3, "tree": 3, "logs": 3, "wait": 125, "verify": 3, "spawn": 125}
ALL = tuple(VERBS)
STARTS = ("run", "run-d")
LOOKS = (*STARTS, "kill-all")


@dataclass(frozen=True)
class Surrounding:
    """`script` is sh, run before agentbox in a mount namespace of its own, with $D, the test's folder, and $CG, the
    cgroup2 mount; `env` is over the environment, with None for unset. `fails`: the verbs that can't work;
    `words`: what their line holds, with {D} and {CG}.
    """

    name: str
    script: str = ""
    env: dict[str, str | None] = field(default_factory=dict)
    fails: tuple[str, ...] = ALL
    words: tuple[str, ...] = ()

    def status(self, verb: str) -> int:
        if verb not in self.fails:
            return UNKNOWN.get(verb, 0)
        return 125 if UNKNOWN.get(verb) == 125 or verb in STARTS else 1 if verb.startswith(("kill", "abort")) else 2

    def run(self, folder: Path, *args: str) -> Done:
        mount = space.cgroup2_mount()
        values = {"D": str(folder), "CG": str(mount)}
        env: dict[str, str | None] = {**agentbox_env(), "AGENTBOX_HOME": f"{folder}/h", **values}
        env |= {key: value and value.format(**values) for key, value in self.env.items()}
        argv = ["unshare", "-m", "--propagation", "private"] if os.geteuid() == 0 else []
        argv += ["sh", "-c", f'{self.script or ":"} && exec "$@"', "sh", *agentbox_argv(*args)]
        wanted = {key: value for key, value in env.items() if value is not None}
        return subprocess.run(argv, env=wanted, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


READ_ONLY = "mkdir -p $D/h && mount -t tmpfs none $D/h && mount -o remount,ro $D/h"
UNUSABLE = [
    Surrounding("home-is-a-file", "touch $D/h", words=("{D}/h", "AGENTBOX_HOME")),
    Surrounding(
        "home-is-a-dangling-link", "ln -sf nowhere/at/all $D/h", fails=STARTS, words=("{D}/h", "AGENTBOX_HOME")
    ),
    Surrounding("home-is-below-a-file", "touch $D/f", {"AGENTBOX_HOME": "{D}/f/h"}, words=("{D}/f/h", "AGENTBOX_HOME")),
    Surrounding("home-is-relative", env={"AGENTBOX_HOME": "h"}, words=("AGENTBOX_HOME", "absolute")),
    Surrounding("home-for-all-to-write", "mkdir -p -m 777 $D/h", fails=STARTS, words=("{D}/h", "chmod go-w")),
    Surrounding("home-read-only", READ_ONLY, fails=STARTS, words=("{D}/h", "Read-only", "AGENTBOX_HOME")),
    Surrounding("home-below-proc", env={"AGENTBOX_HOME": "/proc/agentbox"}, fails=STARTS, words=("/proc/agentbox",)),
    Surrounding("cgroupfs-read-only", "mount -o remount,bind,ro $CG", fails=LOOKS, words=("{CG}", "remount,rw")),
    Surrounding("no-cgroup2", "umount -l /sys/fs/cgroup", fails=LOOKS, words=("cgroup v2", "mount -t cgroup2")),
]
FINE = [
    Surrounding("empty-environment", 'set -- env -i AGENTBOX_HOME=$D/h PYTHONPATH=$PYTHONPATH "$@"', fails=()),
    Surrounding("home-and-path-unset", env={"HOME": None, "PATH": None}, fails=()),
    Surrounding("deleted-working-directory", "mkdir $D/cwd && cd $D/cwd && rmdir $D/cwd", fails=()),
    Surrounding("unknown-encoding", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}, fails=()),
]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts: needs root")


@ROOT
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("where", UNUSABLE, ids=lambda where: where.name)
def test_each_verb_where_not_all_can_work(where: Surrounding, verb: str, tmp_path: Path) -> None:
    check(where, verb, tmp_path)


@ROOT
@pytest.mark.parametrize("verb", ["run", "run-d", "spawn", "kill", "ps"])
@pytest.mark.parametrize("where", FINE, ids=lambda where: where.name)
def test_where_all_can_work(where: Surrounding, verb: str, tmp_path: Path) -> None:
    check(where, verb, tmp_path)


def check(where: Surrounding, verb: str, tmp_path: Path) -> None:
    """The verb's status and its line, as the table has them."""
    done = where.run(tmp_path, *VERBS[verb])
    assert done.returncode == where.status(verb), done.stderr
    if verb in where.fails:
        assert done.stdout == ""
        words = [word.format(D=tmp_path, CG=space.cgroup2_mount()) for word in where.words]
        one_line(done, *words)
        assert not list(tmp_path.glob("h/runs/*"))
    elif verb in UNKNOWN:
        one_line(done, "no such run")
    elif verb != "run":
        assert done.stderr == ""


def _surrounding(name: str) -> Surrounding:
    (found,) = [where for where in [*UNUSABLE, *FINE] if where.name == name]
    return found


@ROOT
class TestKillOfALiveRun:
    """What can't start a run can often still end one; where it can't be proven, it is not said to be."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str) -> str:
        monkeypatch.setenv("AGENTBOX_HOME", f"{tmp_path}/h")
        return start("sh", "-c", "setsid sleep 901 & sleep 900", options=("--run-id", run_id))

    @pytest.mark.parametrize("name", ["cgroupfs-read-only", *(where.name for where in FINE)])
    def test_is_ended(self, name: str, run: str, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
        pids = pids_of(run)
        done = _surrounding(name).run(tmp_path, "kill", run)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not any(map(is_alive, pids))
        agentbox("wait", run, check=137)

    def test_without_cgroups_it_could_not_be_proven(self, run: str, tmp_path: Path) -> None:
        done = _surrounding("no-cgroup2").run(tmp_path, "kill", run)
        assert done.returncode == 1
        assert "could not prove" in done.stdout
        assert "mount -t cgroup2" in done.stderr and "Traceback" not in done.stderr
        agentbox("kill", run, check=0)

    def test_with_its_home_gone(self, run: str, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
        """The cgroup tells whose the run is, so no record is needed."""
        pids, box = pids_of(run), Path(f"{tmp_path}/h")
        box.rename(tmp_path / "elsewhere")
        box.touch()
        done = agentbox("kill", run)
        assert done.returncode == 4, done.stdout + done.stderr
        assert not any(map(is_alive, pids))
        assert all(line.startswith(f"agentbox: {run}: ") for line in done.stderr.splitlines())
        box.unlink()
        (tmp_path / "elsewhere").rename(box)
        agentbox("kill", run, check=0)
        wait_for(lambda: gone(run), what="the box is removed")


@ROOT
def test_backend_systemd_where_systemd_does_not_run(home: Path) -> None:
    if Path("/run/systemd/system").exists():
        pytest.skip("systemd runs here")
    for options in ((), ("-d",)):
        done = agentbox("run", *options, "--backend", "systemd", "--", "true", check=125)
        one_line(done, "systemd", "--backend cgroup")
    assert [row(run.name)["state"] for run in home.glob("runs/*")] == ["not started"] * 2


CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-", "all": "<&- >&- 2>&-"}
FULL = {"full-stdout": ">/dev/full", "full-stderr": "2>/dev/full", "full-both": ">/dev/full 2>&1"}


@pytest.fixture
def hard_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = os.umask(0o777)
    yield
    os.umask(before)


def test_all_files_stay_readable_for_their_owner_whatever_the_umask(home: Path, hard_umask: None) -> None:
    run = start("sleep", "900", options=("--backend", "cgroup"))
    try:
        agentbox("pause", run, "--wait", "0s")
        agentbox("resume", run, check=0)
        agentbox("spawn", "-d", run, "--task", "more", "--", "sleep", "900", check=0)
        row_of = {"task": "more", "action": "modify", "delta": "be quick"}
        agentbox("redirect", run, "--table", "-", stdin=json.dumps({"tasks": [row_of]}), check=0)
        agentbox("estop", check=0)
        files = [path for path in home.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"control", "main", "main.log", "more.jsonl", "EMERGENCY_STOP"}
        assert {str(path): oct(path.stat().st_mode & 0o777) for path in files} == {str(path): "0o600" for path in files}
    finally:
        agentbox("kill", run)
        wait_for(lambda: gone(run))


def test_nothing_of_the_caller_stays_open_above_a_lowered_limit(home: Path, run_id: str) -> None:
    """A pipe to the caller would otherwise end only with the run."""
    reader, writer = os.pipe()
    high = fcntl.fcntl(writer, fcntl.F_DUPFD, 200)
    os.close(writer)
    argv = agentbox_argv("run", "-d", "--run-id", run_id, "--backend", "cgroup", "--", "sleep", "900")
    limited = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *argv]
    try:
        subprocess.run(limited, env=agentbox_env(), pass_fds=[high], stdout=-3, check=True)
        os.close(high)
        assert select.select([reader], [], [], 0)[0], "somebody still holds the caller's pipe"
    finally:
        os.close(reader)
        agentbox("kill", run_id)
        wait_for(lambda: gone(run_id))


def test_status_of_helpers_is_told_where_the_caller_ignores_sigchld(home: Path) -> None:
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    agentbox("estop", check=0)
    argv = [sys.executable, "-c", code, *agentbox_argv("run", "-d", "--", "true")]
    done = subprocess.run(argv, env=agentbox_env(), capture_output=True, text=True)
    assert done.returncode == 75, done.stderr
    one_line(done, "estop --lift")


def redirected(redirection: str, *args: str, unbuffered: str = "") -> Done:
    env = agentbox_env(PYTHONUNBUFFERED=unbuffered)
    argv = ["sh", "-c", f'exec "$@" {redirection}', "sh", *agentbox_argv(*args)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


class TestStreams:
    @pytest.mark.parametrize("verb", ["run", "run-d", "spawn", "kill", "ps-json", "help"])
    @pytest.mark.parametrize("stream", CLOSED)
    def test_closed(self, stream: str, verb: str, home: Path) -> None:
        args = VERBS.get(verb, ("--help",))
        done = redirected(CLOSED[stream], *args)
        assert done.returncode == UNKNOWN.get(verb, 0), done.stderr
        assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
        for run in home.glob("runs/*"):
            agentbox("wait", run.name, check=0)

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("stream", FULL)
    def test_full(self, stream: str, unbuffered: str, home: Path) -> None:
        run = start("sleep", "900")
        for args in (("ps",), ("ps", "--json"), ("inspect", run), ("tree", run), ("manifest",), ("verify", run)):
            done = redirected(FULL[stream], *args, unbuffered=unbuffered)
            assert done.returncode == (0 if stream == "full-stderr" else 2), (args, done.stderr)
            if stream == "full-stdout":
                one_line(done, "output", "No space left")
        done = redirected(FULL[stream], "kill", run, "--dry-run", unbuffered=unbuffered)
        assert done.returncode == (0 if stream == "full-stderr" else 1), "a look that can't be shown has failed"
        done = redirected(FULL[stream], "kill", run, "--json", unbuffered=unbuffered)
        assert done.returncode == 0, "the status of a kill tells of the kill"
        if stream == "full-stdout":
            one_line(done, "output", "No space left")
        wait_for(lambda: gone(run), what="the box is removed")

    def test_full_for_the_id_of_a_run(self, home: Path, run_id: str) -> None:
        done = redirected(FULL["full-stdout"], "run", "-d", "--run-id", run_id, "--", "sleep", "900")
        assert done.returncode == 125
        one_line(done, f"{run_id} was started", f"agentbox kill {run_id}")
        agentbox("kill", run_id, check=0)

    @pytest.mark.parametrize("args", [("ps",), ("ps", "--json"), ("manifest",), ("logs",), ("kill",)])
    def test_reader_that_has_gone(self, args: tuple[str, ...], home: Path) -> None:
        run = start("seq", "100000")
        agentbox("wait", run, check=0)
        args = (*args, run) if args[0] in ("logs", "kill") else args
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as out:
            argv = agentbox_argv(*args)
            done = subprocess.run(argv, env=agentbox_env(), stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0 if args[0] == "kill" else 141, "")


class TestOnSystemd:
    """A machine with systemd, as root there, and as users who have no manager of their own."""

    pytestmark = pytest.mark.bed("nspawn")

    def _as(self, user: list[str], *args: str, env: list[str] | None = None) -> Done:
        argv = ["setpriv", *user, "env", "-i", *(env or []), *agentbox_argv(*args)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd="/")

    @pytest.fixture
    def without_pystemd(self, tmp_path: Path) -> dict[str, str]:
        """A Python that has no pystemd."""
        text = "raise ModuleNotFoundError(\"No module named 'pystemd'\", name='pystemd')\n"
        (tmp_path / "site").mkdir()
        (tmp_path / "site/pystemd.py").write_text(text)
        return {"PYTHONPATH": f"{tmp_path}/site"}

    def test_pystemd_is_missing(self, without_pystemd: dict[str, str], home: Path) -> None:
        env = {**os.environ, "PYTHONPATH": without_pystemd["PYTHONPATH"]}
        argv = agentbox_argv("run", "--backend", "systemd", "--", "true")
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 125
        one_line(done, "pystemd is missing", "pip install 'agentbox-launcher[systemd]'", "libsystemd-dev")

    def test_pystemd_is_missing_and_any_backend_will_do(self, without_pystemd: dict[str, str], home: Path) -> None:
        """What was chosen is printed."""
        env = {**os.environ, "PYTHONPATH": without_pystemd["PYTHONPATH"]}
        done = subprocess.run(agentbox_argv("run", "--", "true"), env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert "(cgroup)" in one_line(done)

    USER = ("--reuid=dev", "--regid=dev", "--init-groups")
    NOBODY = ("--reuid=nobody", "--regid=nogroup", "--clear-groups")
    STRANGER = ("--reuid=4242", "--regid=4242", "--clear-groups")

    @pytest.mark.parametrize("runtime", [[], ["XDG_RUNTIME_DIR=/run/user/1000"], ["XDG_RUNTIME_DIR=/run/user/0"]])
    def test_user_with_a_manager_from_cron(self, runtime: list[str], run_id: str) -> None:
        """As cron, su and sudo start it: no XDG_RUNTIME_DIR or another user's, no HOME, no PATH."""
        done = self._as(list(self.USER), "run", "--run-id", run_id, "--", "/bin/sh", "-c", "exit 3", env=runtime)
        try:
            assert done.returncode == 3, done.stderr
            assert "(systemd)" in one_line(done)
            assert Path(f"/home/dev/.local/state/agentbox/runs/{run_id}/manifest.jsonl").exists()
        finally:
            subprocess.run(["rm", "-rf", "/home/dev/.local/state/agentbox"], check=True)

    def test_user_without_a_manager(self, tmp_path: Path) -> None:
        home = f"AGENTBOX_HOME={tmp_path}/h"
        tmp_path.chmod(0o777)
        for path in (tmp_path.parent, tmp_path.parent.parent):
            path.chmod(0o755)
        for backend in ("auto", "systemd"):
            argv = ("run", "--backend", backend, "--", "true")
            done = self._as(list(self.NOBODY), *argv, env=[home])
            assert done.returncode == 125
            one_line(done, "no systemd user manager", "loginctl enable-linger nobody")
        assert self._as(list(self.NOBODY), "ps", env=[home]).returncode == 0

    def test_what_doctor_tells_a_user_without_a_manager_mends_it(self, tmp_path: Path) -> None:
        """Each of the two repairs, typed by root as it is printed; the shell of the user is the one that asked."""
        tmp_path.chmod(0o777)
        for path in (tmp_path.parent, tmp_path.parent.parent):
            path.chmod(0o755)
        script = '"$@" doctor --json; read -r name; "$@" run --backend "$name" -- true; echo "$?"'
        for name in ("cgroup", "systemd"):
            argv = ["setpriv", *self.NOBODY, "env", "-i", f"AGENTBOX_HOME={tmp_path}/h"]
            argv += ["/bin/sh", "-c", script, "sh", *agentbox_argv()]
            with subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-1, text=True, cwd="/") as shell:
                assert shell.stdin and shell.stdout
                found = {one["name"]: one for one in json.loads(shell.stdout.readline())["backends"]}
                assert not found["cgroup"]["works"] and not found["systemd"]["works"]
                repair = found[name]["repair"]
                assert repair.startswith("as root: ") and "--backend" not in repair
                try:
                    subprocess.run(["sh", "-c", repair.removeprefix("as root: ")], check=True, capture_output=True)
                    if name == "systemd":
                        wait_for(Path("/run/user/65534/systemd/private").exists, 60)
                    out, err = shell.communicate(f"{name}\n", timeout=60)
                    assert out.splitlines()[-1:] == ["0"], err
                    assert f"({name})" in err
                finally:
                    shell.kill()
                    self._undo(name)

    def _undo(self, name: str) -> None:
        if name == "systemd":
            subprocess.run(["loginctl", "disable-linger", "nobody"], check=True)
            wait_for(lambda: not Path("/run/user/65534/systemd/private").exists(), 60)
        else:
            mount = space.cgroup2_mount()
            assert mount and space.end_tree(mount / "delegated-nobody")

    def test_user_with_no_home_at_all(self) -> None:
        for verb, code in (("run", 125), ("ps", 2), ("kill", 1)):
            args = {"run": ("run", "--", "true"), "ps": ("ps",), "kill": ("kill", "x")}[verb]
            done = self._as(list(self.STRANGER), *args)
            assert done.returncode == code
            one_line(done, "HOME is unset", "4242", "AGENTBOX_HOME")

    def test_home_of_somebody_else(self, tmp_path: Path) -> None:
        (tmp_path / "h").mkdir(mode=0o700)
        home = [f"AGENTBOX_HOME={tmp_path}/h"]
        for args in (("run", "--", "true"), ("run", "-d", "--", "true")):
            done = self._as(list(self.USER), *args, env=home)
            assert done.returncode == 125, done.stderr
            one_line(done, f"{tmp_path}/h", "Permission denied", "AGENTBOX_HOME")
        done = self._as(list(self.USER), "kill", "x", env=home)
        assert done.returncode == 1
        one_line(done, f"{tmp_path}/h", "Permission denied")

    def test_root_with_nothing_in_the_environment(self, run_id: str) -> None:
        done = self._as([], "run", "--run-id", run_id, "--", "/bin/true")
        try:
            assert done.returncode == 0, done.stderr
            assert Path(f"/var/lib/agentbox/runs/{run_id}/manifest.jsonl").exists()
        finally:
            subprocess.run(["rm", "-rf", "/var/lib/agentbox"], check=True)


@pytest.mark.bed("nspawn-user")
def test_read_only_home_as_a_plain_user(home: Path) -> None:
    home.mkdir(mode=0o500)
    one_line(agentbox("run", "--", "true", check=125), str(home), "Permission denied")
    assert agentbox("ps").returncode == 0


def test_interpreter_that_is_told_to_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end each verb with a traceback and a prompt."""
    monkeypatch.setenv("PYTHONINSPECT", "1")
    run = start("sleep", "900")
    killed = agentbox("kill", run)
    assert (killed.returncode, killed.stderr) == (0, "")
    assert (ended := agentbox("wait", run)).returncode == 137 and ended.stderr == ""
    failed = agentbox("run", "--", "sh", "-c", "exit 3")
    assert failed.returncode == 3 and "Traceback" not in failed.stderr
