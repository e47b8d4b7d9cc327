"""The units: what they say, and what they do under a real manager when nothing else of agentbox runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import space
from tests.beds.base import TREE
from tests.emergency.fleet import Fleet, backends, bare_environment
from tests.emergency.left_behind import left_behind
from tests.support import agentbox, wait_for

Systemctl = Callable[..., str]
UNITS = {path.name for path in (TREE / "systemd").iterdir() if path.suffix != ".conf"}


def test_a_dry_run_prints_all_and_writes_nothing(home: Path) -> None:
    text = agentbox("install-units", "--dry-run", check=0).stdout
    assert {Path(line[2:]).name for line in text.splitlines() if line.startswith("# /etc/")} == UNITS
    assert str(home / "EMERGENCY_STOP") in text and not re.search("@[A-Z]", text)
    assert not home.exists()


def test_a_users_units_are_the_users(home: Path, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = agentbox("install-units", "--user", env=env, check=0)
    folder = tmp_path / "config" / "systemd" / "user"
    assert {path.name for path in folder.iterdir()} == UNITS
    assert "systemctl --user daemon-reload" in done.stdout
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644
        # what needs privilege fails the service under a user's manager
        assert "ProtectSystem" not in path.read_text() and "CapabilityBoundingSet" not in path.read_text()
    again = agentbox("install-units", "--user", env=env, check=0).stdout
    assert again.count("unchanged ") == len(UNITS)


def test_a_file_that_is_not_ours_is_kept(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "config" / "systemd" / "user" / "agentbox-watch.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    done = agentbox("install-units", "--user", env={"XDG_CONFIG_HOME": str(tmp_path / "config")}, check=125)
    assert "move it away" in done.stderr and path.read_text().startswith("[Service]")
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "do$llar", 'quo"te', "back\\slash", "ümlaut", "a'b"])
def test_any_path_of_the_home(tmp_path: Path, name: str) -> None:
    """As systemd reads it back (systemd-analyze), and as sh reads the crontab lines."""
    home = tmp_path / name
    text = agentbox("install-units", "--dry-run", home=home, check=0).stdout
    escaped = str(home).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    assert f'Environment="AGENTBOX_HOME={escaped}"' in text
    assert f"PathExists={str(home).replace('%', '%%')}/EMERGENCY_STOP" in text
    for line in agentbox("install-units", "--cron", home=home, check=0).stdout.splitlines():
        if not line.startswith("#"):
            command = line.split(" ", 5)[5].replace("\\%", "%")
            assert f"AGENTBOX_HOME={home}" in shlex.split(command.replace("$(", " ").replace(")", " "))


def test_a_path_that_cannot_stand_in_a_unit(tmp_path: Path) -> None:
    done = agentbox("install-units", "--dry-run", home=tmp_path / "a\nb", check=2)
    assert len(done.stderr.splitlines()) == 1


def test_the_engine_of_the_runs_is_the_units(home: Path) -> None:
    text = agentbox("install-units", "--dry-run", env={"DOCKER_HOST": "tcp://10.0.0.1:2376"}, check=0).stdout
    assert '"DOCKER_HOST=tcp://10.0.0.1:2376"' in text and "AF_INET" in text and "IPAddressDeny=any" not in text
    text = agentbox("install-units", "--dry-run", env={"DOCKER_HOST": "unix:///run/x.sock"}, check=0).stdout
    assert "unix:///run/x.sock" in text and "AF_INET" not in text and "IPAddressDeny=any" in text


def test_the_metrics_of_the_reconciler(home: Path, tmp_path: Path) -> None:
    """In its command and open to it, in the unit as in the line for cron; a place that is none is told at once."""
    path = tmp_path / "100% so$" / "agentbox.prom"
    for options in ((), ("--dry-run",), ("--cron",)):
        done = agentbox("install-units", "--metrics", str(path), *options, check=2)
        assert len(done.stderr.splitlines()) == 1 and f"mkdir -p '{path.parent}'" in done.stderr
    path.parent.mkdir()
    given = ("install-units", "--metrics", str(path))
    assert "is a directory" in agentbox(*given[:2], str(path.parent), "--dry-run", check=2).stderr
    text = agentbox(*given, "--dry-run", check=0).stdout
    folder = str(path.parent).replace("%", "%%")
    command = next(line for line in text.splitlines() if "reconcile" in line and line.startswith("ExecStart="))
    assert command.endswith(f'"--min-severity" "warning" "--metrics" "{folder.replace("$", "$$")}/agentbox.prom"')
    assert text.count(f'ReadWritePaths="-{folder}"') == 1
    assert "ReadWritePaths" not in agentbox(*given, "--user", "--dry-run", check=0).stdout
    assert "--metrics" not in agentbox("install-units", "--dry-run", check=0).stdout
    line = agentbox(*given, "--cron", check=0).stdout.splitlines()[-1]
    command = line.split(" ", 5)[5].replace("\\%", "%")
    assert f"reconcile --min-severity warning --metrics '{path}' 2>&1" in command
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout == ""
    assert 'agentbox_reconcile_findings{kind="orphan",severity="warning"} 0' in path.read_text()


@pytest.fixture
def systemctl(bed: str) -> Systemctl:
    """`systemctl` of the bed's manager; its output."""
    manager = ["--user"] if bed == "nspawn-user" else []

    def call(*words: str, check: bool = True) -> str:
        done = subprocess.run(["systemctl", *manager, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    return call


@pytest.fixture
def installed(bed: str, fleet: Fleet, systemctl: Systemctl) -> Iterator[Fleet]:
    """The units in place for the fleet's home, none of them started."""
    agentbox("install-units", *(["--user"] if bed == "nspawn-user" else []), check=0)
    folder = Path("~/.config/systemd/user").expanduser() if bed == "nspawn-user" else Path("/etc/systemd/system")
    systemctl("daemon-reload")
    yield fleet
    started = [name for name in UNITS if name != "agentbox.slice"]
    systemctl("disable", "--now", *started, check=False)
    for name in UNITS:
        (folder / name).unlink()
    systemctl("daemon-reload")
    systemctl("reset-failed", check=False)


def state(systemctl: Systemctl, unit: str, name: str = "ActiveState") -> str:
    return systemctl("show", unit, "-p", name, "--value")


@pytest.mark.bed("nspawn", "nspawn-user")
def test_the_manager_finds_no_fault(bed: str, installed: Fleet, systemctl: Systemctl) -> None:
    manager = ["--user"] if bed == "nspawn-user" else []
    done = subprocess.run(["systemd-analyze", *manager, "verify", *UNITS], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "agentbox" not in done.stderr, done.stderr


@pytest.mark.bed("nspawn")
@pytest.mark.parametrize("name", ["watch", "emergency", "reconcile"])
def test_hardened(bed: str, installed: Fleet, name: str) -> None:
    argv = ["systemd-analyze", "security", "--threshold=26", f"agentbox-{name}.service"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.bed("nspawn", "nspawn-user")
def test_the_path_unit_alone(
    bed: str, installed: Fleet, systemctl: Systemctl, bystander: subprocess.Popen[bytes]
) -> None:
    """Nothing of agentbox runs; a touched file ends all runs, again and again; lifting ends the service."""
    systemctl("enable", "--now", "agentbox-emergency.path")
    path = installed.home / "EMERGENCY_STOP"
    for lift in (path.unlink, lambda: agentbox("estop", "--lift", check=0)):
        for backend in backends(bed):
            installed.start(backend)
        assert state(systemctl, "agentbox-emergency.service") == "inactive"
        subprocess.run(["touch", str(path)], env=bare_environment(installed.home), check=True)
        installed.stopped()
        wait_for(lambda: state(systemctl, "agentbox-emergency.service") == "active", 30)
        assert "ON" in state(systemctl, "agentbox-emergency.service", "StatusText")
        lift()
        wait_for(lambda: state(systemctl, "agentbox-emergency.service") == "inactive", 30)
        wait_for(lambda: state(systemctl, "agentbox-emergency.path", "SubState") == "waiting", 30)
    assert state(systemctl, "agentbox-emergency.service", "Result") == "success"


@pytest.mark.bed("nspawn", "nspawn-user")
def test_a_stop_that_is_on_when_the_manager_starts(bed: str, installed: Fleet, systemctl: Systemctl) -> None:
    """After a reboot, say."""
    installed.start(backends(bed)[-1])
    (installed.home / "EMERGENCY_STOP").touch()
    systemctl("start", "agentbox-emergency.path")
    installed.stopped()


@pytest.mark.bed("nspawn", "nspawn-user")
def test_the_watch_service(bed: str, installed: Fleet, systemctl: Systemctl) -> None:
    """Ready once it watches, back when it is killed, clean when it is stopped."""
    systemctl("enable", "--now", "agentbox-watch.service")  # returns when it says READY=1
    assert "no emergency stop" in state(systemctl, "agentbox-watch.service", "StatusText")
    for backend in backends(bed):
        installed.start(backend)
    pid = int(state(systemctl, "agentbox-watch.service", "MainPID"))
    os.kill(pid, 9)
    wait_for(lambda: state(systemctl, "agentbox-watch.service", "MainPID") not in ("0", str(pid)), 30)
    wait_for(lambda: state(systemctl, "agentbox-watch.service") == "active", 30)
    (installed.home / "EMERGENCY_STOP").touch()
    installed.stopped()
    (installed.home / "EMERGENCY_STOP").unlink()
    wait_for(lambda: "no emergency stop" in state(systemctl, "agentbox-watch.service", "StatusText"), 30)
    run = installed.start(backends(bed)[-1])
    (installed.home / "runs" / run / "ctl" / "control").write_text("STOP\n")
    installed.stopped()
    systemctl("stop", "agentbox-watch.service")
    assert state(systemctl, "agentbox-watch.service", "Result") == "success"


@pytest.mark.bed("nspawn")
def test_processes_of_other_users(bed: str, installed: Fleet, systemctl: Systemctl) -> None:
    """The hardened service ends what root's runs became, and reads it for the receipt."""
    systemctl("start", "agentbox-watch.service")
    command = [
        "setpriv",
        "--reuid",
        "dev",
        "--clear-groups",
        "--no-new-privs",
        "sh",
        "-c",
        "sleep 900 & sleep 900 & sleep 900 & setsid sleep 900 & wait",
    ]
    installed.start("systemd", command=command)
    (installed.home / "EMERGENCY_STOP").touch()
    installed.stopped()
    (run,) = installed.parents
    processes = installed.receipts(run)[0]["processes"]
    assert all(one["argv"] and one["cwd"] and one["uid"] == 1000 for one in processes), processes


@pytest.mark.bed("nspawn")
def test_both_at_once_make_one_receipt_a_run(bed: str, installed: Fleet, systemctl: Systemctl) -> None:
    systemctl("start", "agentbox-emergency.path", "agentbox-watch.service")
    for _ in range(4):
        installed.start("systemd")
    (installed.home / "EMERGENCY_STOP").touch()
    installed.stopped()
    wait_for(lambda: state(systemctl, "agentbox-emergency.service") == "active", 30)
    installed.stopped()


@pytest.fixture
def timer(bed: str, installed: Fleet, systemctl: Systemctl) -> Iterator[Callable[[], None]]:
    """Starts the reconciler's timer, which fires soon, and waits for the service's end."""
    base = Path("~/.config/systemd/user").expanduser() if bed == "nspawn-user" else Path("/etc/systemd/system")
    folder = base / "agentbox-reconcile.timer.d"
    folder.mkdir()
    (folder / "soon.conf").write_text("[Timer]\nOnActiveSec=1s\nAccuracySec=100ms\n")

    def fire() -> None:
        systemctl("daemon-reload")
        systemctl("start", "agentbox-reconcile.timer")
        wait_for(lambda: state(systemctl, "agentbox-reconcile.service", "ExecMainExitTimestampMonotonic") != "0", 60)

    yield fire
    (folder / "soon.conf").unlink()
    folder.rmdir()


@pytest.mark.bed("nspawn", "nspawn-user")
def test_the_timer_runs_the_reconciler(bed: str, timer: Callable[[], None], systemctl: Systemctl) -> None:
    """Its metrics go to a place that the hardening closes otherwise."""
    user = ["--user"] if bed == "nspawn-user" else []
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        path = Path(folder) / "agentbox.prom"
        agentbox("install-units", *user, "--metrics", str(path), check=0)
        timer()
        assert state(systemctl, "agentbox-reconcile.service", "Result") == "success"
        assert 'severity="warning"' in path.read_text()


@pytest.mark.bed("nspawn")
def test_what_the_timer_finds(bed: str, timer: Callable[[], None], systemctl: Systemctl, tmp_path: Path) -> None:
    """An orphan, a ghost and an escapee, in the journal, and nothing of what is at work."""
    with left_behind(tmp_path) as left:
        timer()
        invocation = state(systemctl, "agentbox-reconcile.service", "InvocationID")
        query = ["journalctl", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
        wait_for(lambda: left.told(subprocess.run(query, capture_output=True, text=True, check=True).stdout), 60)
        assert state(systemctl, "agentbox-reconcile.service", "Result") == "success"


# cron


@pytest.mark.bed("nspawn")
@pytest.mark.limit(200)
def test_cron_really_does_it(bed: str, fleet: Fleet) -> None:
    for backend in backends(bed):
        fleet.start(backend)
    lines = agentbox("install-units", "--cron", check=0).stdout
    subprocess.run(["crontab", "-"], input=lines, text=True, check=True)
    try:
        (fleet.home / "EMERGENCY_STOP").touch()
        wait_for(lambda: fleet.alive() == [], 100, "cron has run the line")
        fleet.stopped()
    finally:
        subprocess.run(["crontab", "-r"], check=True)


@pytest.mark.bed("nspawn")
@pytest.mark.limit(200)
def test_what_cron_finds(bed: str, home: Path, tmp_path: Path) -> None:
    """The same as the timer; the line's own output goes to a file instead of a mail."""
    _, _, line = agentbox("install-units", "--cron", check=0).stdout.splitlines()
    command = line.split(" ", 5)[5]
    with left_behind(tmp_path) as left:
        out = tmp_path / "mail"
        subprocess.run(
            ["crontab", "-"], input=f"* * * * * ( {command} ) >{out}.part; mv {out}.part {out}\n", text=True, check=True
        )
        try:
            wait_for(out.exists, 130, "cron has run the line")
            assert left.told(out.read_text()), out.read_text()
        finally:
            subprocess.run(["crontab", "-r"], check=True)


def test_the_cron_line_under_crons_environment(fleet: Fleet) -> None:
    """As crond runs it: /bin/sh -c, no environment to speak of, the home as working directory."""
    fleet.start()
    (fleet.home / "EMERGENCY_STOP").touch()
    _, enforce, _ = agentbox("install-units", "--cron", check=0).stdout.splitlines()
    mark = {space.MARK: os.environ[space.MARK]}
    env = {"HOME": "/root", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", **mark}
    command = enforce.split(" ", 5)[5].replace("\\%", "%")
    done = subprocess.run(["/bin/sh", "-c", command], env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "emergency stop" in done.stderr
    fleet.stopped()
    done = subprocess.run(["/bin/sh", "-c", command], env=env, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "no mail where nothing was done"


def test_they_are_in_the_package() -> None:
    """`systemd/` at the top and the package's own are the same files."""
    package = TREE / "sandbox" / "units"
    assert {path.name for path in package.iterdir()} == {path.name for path in (TREE / "systemd").iterdir()}
