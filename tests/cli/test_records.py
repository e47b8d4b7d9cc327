"""`logs`, `manifest` and `verify`: what was written comes out as it was; no secret is ever written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from sandbox.control.orders import write_order
from tests.cli.runs import Done, inspect, one_line, pids_of, records, run_dir, start
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("home", "bystander")


def logs(*args: str) -> bytes:
    done = subprocess.run(agentbox_argv("logs", *args), env=agentbox_env(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def ended(*command: str) -> str:
    run = start(*command)
    agentbox("wait", run)
    return run


class TestLogs:
    def test_bytes_are_kept(self) -> None:
        run = ended("sh", "-c", r"printf 'a\0b\377\n\033[31m\r\n'; printf 'err\n' >&2; printf 'no newline'")
        assert logs(run) == b"a\0b\xff\n\x1b[31m\r\nerr\nno newline"
        assert (run_dir(run) / "out/main.log").stat().st_mode & 0o777 == 0o600

    def test_all_of_a_large_output(self, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        (tmp_path / "data").write_bytes(data)
        assert logs(ended("cat", str(tmp_path / "data"))) == data

    def test_nothing_written(self) -> None:
        run = ended("true")
        assert logs(run) == logs(run, "--tail", "5") == b""

    @pytest.mark.parametrize(
        ("text", "count", "last"),
        [
            ("1\n2\n3\n", 0, ""),
            ("1\n2\n3\n", 1, "3\n"),
            ("1\n2\n3\n", 2, "2\n3\n"),
            ("1\n2\n3\n", 3, "1\n2\n3\n"),
            ("1\n2\n3\n", 9, "1\n2\n3\n"),
            ("1\n2\n3", 1, "3"),
            ("1\n2\n3", 2, "2\n3"),
            ("\n\n\n", 2, "\n\n"),
            ("x", 1, "x"),
            ("\n", 1, "\n"),
        ],
    )
    def test_tail(self, text: str, count: int, last: str) -> None:
        run = ended("printf", "%s", text)
        assert logs(run, "--tail", str(count)) == last.encode()

    def test_tail_over_more_than_a_block(self) -> None:
        run = ended("seq", "100000")
        lines = b"".join(b"%d\n" % number for number in range(1, 100001))
        for count in (1, 20_000, 99_999, 100_000, 100_001):
            assert logs(run, "--tail", str(count)) == b"".join(lines.splitlines(keepends=True)[-count:])

    def test_of_a_task(self) -> None:
        run = start("sleep", "900")
        agentbox("spawn", "-d", run, "--task", "t", "--", "echo", "of t", check=0)
        wait_for(lambda: logs(run, "t") == b"of t\n")
        assert logs(run) == logs(run, "main") == b""
        agentbox("kill", run, check=0)

    def test_follows_to_the_end(self, tmp_path: Path) -> None:
        line = f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two; exit 3"
        run = start("sh", "-c", line)
        with subprocess.Popen(agentbox_argv("logs", "-f", run), env=agentbox_env(), stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"one\n"
            assert reader.poll() is None
            (tmp_path / "go").touch()
            assert reader.stdout.read() == b"two\n"
            assert reader.wait(30) == 0

    def test_following_ends_with_a_kill(self) -> None:
        run = start("sh", "-c", "echo one; sleep 900")
        with subprocess.Popen(
            agentbox_argv("logs", "-f", "--tail", "0", run), env=agentbox_env(), stdout=subprocess.PIPE
        ) as reader:
            agentbox("kill", run, check=0)
            assert reader.wait(30) == 0

    def test_following_an_ended_run(self) -> None:
        assert logs("-f", ended("echo", "one")) == b"one\n"

    def test_interrupted(self) -> None:
        run = start("sh", "-c", "echo one; sleep 900")
        with subprocess.Popen(
            agentbox_argv("logs", "-f", run), env=agentbox_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as reader:
            assert reader.stdout and reader.stderr and reader.stdout.readline() == b"one\n"
            reader.send_signal(signal.SIGINT)
            assert reader.wait(30) == 130
            assert reader.stderr.read() == b""
        agentbox("kill", run, check=0)

    def test_late_output_of_a_stopped_run_is_kept(self, tmp_path: Path) -> None:
        """STOP stands, the worker takes its time to leave: what it still says is in its log."""
        line = f"echo before; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo late"
        run = start("sh", "-c", line)
        wait_for(lambda: logs(run) == b"before\n")
        write_order(str(run_dir(run) / "ctl/control"), "STOP")
        (tmp_path / "go").touch()
        agentbox("wait", run, check=143)
        assert logs(run) == b"before\nlate\n"

    def test_what_is_said_at_sigterm_is_kept(self, tmp_path: Path) -> None:
        run = start("sh", "-c", f"trap 'echo leaving; exit 0' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done")
        wait_for((tmp_path / "on").exists)
        agentbox("abort", run, "--grace", "0", check=0)
        agentbox("wait", run, check=143)
        assert logs(run).endswith(b"leaving\n")

    @pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
    def test_that_is_no_file(self, kind: str, tmp_path: Path) -> None:
        run = ended("echo", "one")
        path = run_dir(run) / "out/main.log"
        path.unlink()
        (tmp_path / "secret").write_text("secret")
        {
            "fifo": lambda: os.mkfifo(path),
            "symlink": lambda: path.symlink_to(tmp_path / "secret"),
            "directory": path.mkdir,
        }[kind]()
        one_line(agentbox("logs", run, check=2), "no log")


class TestManifest:
    def test_one_and_all(self) -> None:
        runs = [ended("true"), ended("false")]
        for run in runs:
            assert agentbox("manifest", run, check=0).stdout == (run_dir(run) / "manifest.jsonl").read_text()
        text = "".join(agentbox("manifest", run, check=0).stdout for run in sorted(runs))
        assert agentbox("manifest", check=0).stdout == text

    def test_every_record_has_what_all_have(self) -> None:
        run = start("sleep", "900")
        agentbox("kill", run, check=0)
        agentbox("wait", run, check=137)
        host, boot = os.uname().nodename, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for record in records(run):
            assert (record["v"], record["run_id"], record["host"], record["boot_id"]) == (1, run, host, boot)
            assert set(record) >= {"ts", "mono", "task_id", "event", "by", "prev"}
            assert record["by"]["uid"] == os.getuid() and record["by"]["inside"] is False
        events = [record["event"] for record in records(run)]
        assert events[:3] == ["run.created", "task.intent", "task.started"]
        assert {"control.set", "stop.rung", "stop.receipt", "task.exited", "run.ended"} <= set(events)

    def test_jq_finds_the_pids(self) -> None:
        if shutil.which("jq") is None:
            pytest.skip("no jq")
        run, other = start("sleep", "900"), start("sleep", "901")
        agentbox("spawn", "-d", run, "--task", "t", "--", "sleep", "902", check=0)
        both = agentbox("manifest", check=0).stdout
        program = "select(.run_id == $run and .pid) | .pid"
        done = subprocess.run(["jq", "-r", "--arg", "run", run, program], input=both, capture_output=True, text=True)
        assert sorted(map(int, done.stdout.split())) == sorted(pids_of(run))
        for one in (run, other):
            agentbox("kill", one, check=0)

    def test_started_task(self) -> None:
        run = start("sleep", "900")
        (task,) = records(run, "task.started")
        assert (task["task_id"], task["argv"], task["remote_id"], task["branch"]) == (
            "main",
            ["sleep", "900"],
            None,
            None,
        )
        assert [task["pid"]] == pids_of(run)
        fields = Path(f"/proc/{task['pid']}/stat").read_text().rpartition(")")[2].split()
        assert task["start_ticks"] == int(fields[19])
        box = task["box"]
        assert set(box) >= {"backend", "id", "cgroup", "cgroup_inode"}
        assert Path(box["cgroup"]).stat().st_ino == box["cgroup_inode"]
        assert str(task["pid"]) in Path(f"{box['cgroup']}/cgroup.procs").read_text().split()
        agentbox("kill", run, check=0)


class TestVerify:
    def verdict(self, run: str, code: int, *options: str) -> Done:
        done = agentbox("verify", run, *options, check=code)
        assert done.stderr == ""
        assert done.stdout.splitlines()[0] == f"{run}: {'whole' if code == 0 else 'BROKEN'}"
        found = json.loads(agentbox("verify", run, "--json", *options, check=code).stdout)
        assert (found["run_id"], found["whole"]) == (run, code == 0)
        assert bool(found["problems"]) == (code != 0)
        return done

    def lines(self, run: str) -> list[bytes]:
        return (run_dir(run) / "manifest.jsonl").read_bytes().splitlines(keepends=True)

    def write(self, run: str, lines: list[bytes]) -> None:
        (run_dir(run) / "manifest.jsonl").write_bytes(b"".join(lines))

    def test_whole(self) -> None:
        run = ended("true")
        assert "cannot tell" in self.verdict(run, 0).stdout

    def test_changed(self) -> None:
        run = ended("false")
        lines = self.lines(run)
        for at in range(len(lines) - 1):
            changed = lines[at].replace(b'"v":1', b'"v":2')
            self.write(run, [*lines[:at], changed, *lines[at + 1 :]])
            self.verdict(run, 1)

    def test_removed_and_put_in(self) -> None:
        run = ended("false")
        lines = self.lines(run)
        self.write(run, [lines[0], *lines[2:]])
        self.verdict(run, 1)
        self.write(run, [*lines[:2], lines[1], *lines[2:]])
        self.verdict(run, 1)

    def test_torn_is_not_broken(self) -> None:
        run = ended("false")
        self.write(run, [*self.lines(run), b'{"v":1,"ev'])
        assert "torn" in self.verdict(run, 0).stdout
        agentbox("kill", run, check=0)

    def test_end_that_was_cut_off_is_seen_with_the_head(self) -> None:
        run = ended("false")
        head = json.loads(agentbox("verify", run, "--json", check=0).stdout)["head"]
        self.verdict(run, 0, "--head", head)
        self.write(run, self.lines(run)[:-1])
        self.verdict(run, 0)
        self.verdict(run, 1, "--head", head)

    def test_no_record(self) -> None:
        run = ended("true")
        (run_dir(run) / "manifest.jsonl").unlink()
        one_line(agentbox("verify", run, check=1), "no record")
        one_line(agentbox("manifest", run, check=2), "no record")
        assert agentbox("manifest", check=0).stdout == ""

    def test_what_cannot_be_read(self) -> None:
        run = ended("true")
        path = run_dir(run) / "manifest.jsonl"
        path.unlink()
        os.mkfifo(path)
        one_line(agentbox("verify", run, check=2), str(path))
        one_line(agentbox("manifest", run, check=2), str(path))


CANARIES = [f"canary-{number}-4711" for number in range(9)]


def test_no_secret_is_written(home: Path, tmp_path: Path) -> None:
    """Not what stands in the environment or behind a flag that names a secret; not in the record nor in a view."""
    env, given, token, key, header, url, label, reason, passed = CANARIES
    argv = ["sh", "-c", "sleep 900", "tool", "--token", token, f"--api-key={key}"]
    argv += ["-H", f"Authorization: Bearer {header}", f"https://user:{url}@example.org/"]
    options = ["--env", f"OPENAI_API_KEY={given}", "--env", "MY_TOKEN", "--label", f"password={label}"]
    extra = {"ANTHROPIC_API_KEY": env, "MY_TOKEN": passed}
    run = agentbox("run", "-d", *options, "--", *argv, check=0, env=extra).stdout.strip()
    seen = Path(f"/proc/{records(run, 'task.started')[0]['pid']}/environ").read_text()
    assert all(secret in seen for secret in (env, given, passed)), "the command has what it needs"
    agentbox("spawn", "-d", run, "--task", "t", "--", *argv, check=0)
    views = [agentbox(*args, check=0).stdout for args in (("ps",), ("ps", "--json"), ("inspect", run), ("tree", run))]
    views.append(agentbox("kill", run, "--reason", f"password={reason}", "--json", check=0).stdout)
    views += [agentbox(*args).stdout for args in (("inspect", run), ("manifest", run), ("ps", "-a"), ("verify", run))]
    agentbox("wait", run, check=137)
    files = [path.read_text(errors="replace") for path in home.rglob("*") if path.is_file()]
    assert len(files) > 4
    for name, texts in (("view", views), ("file", files)):
        for secret in CANARIES:
            assert not [text for text in texts if secret in text], (name, secret)


def test_files_are_private(home: Path) -> None:
    old = os.umask(0)
    try:
        run = start("echo", "one")
        agentbox("wait", run, check=0)
    finally:
        os.umask(old)
    for path in [home, *home.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_environment_of_the_command(home: Path) -> None:
    done = agentbox(
        "run",
        "--env",
        "A=1",
        "--env",
        "B",
        "--env",
        "C",
        "--env",
        "D=",
        "--env",
        "E=a=b c",
        "--",
        "env",
        env={"B": "2"},
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (seen["A"], seen["B"], seen["D"], seen["E"]) == ("1", "2", "", "a=b c")
    assert "C" not in seen
    (run,) = [path.name for path in home.glob("runs/*")]
    assert seen["RUN_ID"] == seen["AGENTBOX_RUN_ID"] == run
    assert seen["TASK_ID"] == seen["AGENTBOX_TASK_ID"] == "main"
    assert seen["AGENTBOX_CONTROL"] == str(home / "runs" / run / "ctl/control")
    assert seen["AGENTBOX_BEAT"] == str(home / "runs" / run / "beat/main")


def test_wait_of_several_waiters_and_of_a_run_that_ends_later(tmp_path: Path) -> None:
    run = start("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5")
    waiters = [subprocess.Popen(agentbox_argv("wait", run), env=agentbox_env()) for _ in range(3)]
    assert all(waiter.poll() is None for waiter in waiters)
    (tmp_path / "go").touch()
    assert [waiter.wait(30) for waiter in waiters] == [5, 5, 5]
    assert inspect(run)["ended"]["code"] == 5
    assert not [pid for pid in pids_of(run) if is_alive(pid)]
