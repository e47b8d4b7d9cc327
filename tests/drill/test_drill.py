"""The drill on every backend passes and leaves nothing; what the fixture does wrong fails its row and no other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.cgroup import CgroupBackend
from sandbox.drill.fleet import STEPS
from sandbox.drill.page import page
from sandbox.drill.sabotage import SABOTAGE
from sandbox.drill.score import Measured, Score, rows
from sandbox.drill.table import THRESHOLDS, Table, load
from sandbox.errors import AgentboxError
from sandbox.kernel.identity import Identity
from tests.beds.base import TREE
from tests.beds.dockerd import Dockerd
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

QUICK = TREE / "tests" / "drill" / "quick.toml"
AT_ONCE = 4
"""A drill waits for most of its time."""


@dataclass
class Held:
    """A drill that was held in a home and a TMPDIR of its own."""

    folder: Path
    code: int
    out: str
    err: str

    @property
    def score(self) -> dict[str, Any]:
        assert self.out, self.err
        return dict(json.loads(self.out))

    @property
    def verdicts(self) -> dict[str, str]:
        return {row["name"]: row["verdict"] for row in self.score["rows"]}

    @property
    def not_passed(self) -> dict[str, str]:
        return {name: verdict for name, verdict in self.verdicts.items() if verdict != "pass"}

    def left(self) -> list[str]:
        """What is left of it on disk, and of its boxes."""
        runs = self.folder / "home" / "runs"
        disk = [*os.listdir(self.folder / "tmp"), *(os.listdir(runs) if runs.exists() else [])]
        return disk + [box.id for box in CgroupBackend(str(self.folder / "home")).list()]


def surroundings(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(parents=True)
    return agentbox_env(folder / "home", TMPDIR=str(folder / "tmp"))


def argv(*options: str, workers: int = 3) -> list[str]:
    return agentbox_argv("drill", "--json", "--workers", str(workers), "--thresholds", str(QUICK), *options)


def hold(folder: Path, *options: str, workers: int = 3) -> Held:
    env = surroundings(folder)
    done = subprocess.run(argv(*options, workers=workers), env=env, capture_output=True, text=True, timeout=280)
    return Held(folder, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Held]]:
    """One drill without and one with each sabotage, by name; some at a time. A bystander beats beside them all."""
    folder = tmp_path_factory.mktemp("drills")
    bystander = subprocess.Popen(["sleep", "900"], start_new_session=True)
    wanted = {
        "none": (),
        "no page": ("--html", "/dev/full"),
        "kept": ("--keep", "--html", str(folder / "page.html")),
        **{name: ("--sabotage", name) for name in SABOTAGE},
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        held = {
            name: pool.submit(hold, folder / name, "--backend", "cgroup", *options) for name, options in wanted.items()
        }
    alive = is_alive(bystander.pid)
    bystander.kill()
    bystander.wait()
    assert alive, "the bystander was killed, too"
    yield {name: one.result() for name, one in held.items()}


def test_every_row_passes(drills: dict[str, Held]) -> None:
    one = drills["none"]
    assert one.not_passed == {}, one.out
    assert one.code == 0
    assert set(one.verdicts) == set(THRESHOLDS)
    assert all(row["measured"] is not None for row in one.score["rows"])
    assert one.left() == []


@pytest.mark.parametrize("name", SABOTAGE)
def test_each_row_can_fail(drills: dict[str, Held], name: str) -> None:
    one = drills[name]
    assert one.not_passed == {SABOTAGE[name][0]: "fail"}, one.out or one.err
    assert one.code == 1
    assert one.left() == []


def test_every_row_has_a_sabotage() -> None:
    assert {row for row, _ in SABOTAGE.values()} == set(THRESHOLDS)


@pytest.mark.parametrize(
    "manager",
    [
        pytest.param("system", marks=pytest.mark.bed("nspawn")),
        pytest.param("user", marks=[pytest.mark.bed("nspawn-user"), pytest.mark.full("the same scopes")]),
    ],
)
@pytest.mark.usefixtures("bystander")
def test_on_systemd(tmp_path: Path, manager: str) -> None:
    one = hold(tmp_path / "d", "--backend", "systemd")
    assert (one.code, one.not_passed, one.left()) == (0, {}, []), one.out or one.err
    assert one.score["backend"] == "systemd"


@pytest.mark.bed("dockerd")
@pytest.mark.usefixtures("bystander")
def test_on_docker(tmp_path: Path, dockerd: Dockerd) -> None:
    before = images(dockerd)
    one = hold(tmp_path / "d", "--backend", "docker")
    assert (one.code, one.not_passed, one.left()) == (0, {}, []), one.out or one.err
    assert images(dockerd) == before
    assert dockerd.engine.containers(f"agentbox.run={one.score['run_id']}") == []


def images(dockerd: Dockerd) -> set[str]:
    return {image["Id"] for image in dockerd.engine.ask("GET", "/images/json?all=1")}


@pytest.mark.full("sixteen workers at the usual pace, as a person holds it")
@pytest.mark.parametrize(
    "backend",
    [
        "cgroup",
        pytest.param("systemd", marks=pytest.mark.bed("nspawn")),
        pytest.param("docker", marks=pytest.mark.bed("dockerd")),
    ],
)
@pytest.mark.usefixtures("bystander")
def test_sixteen_workers(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "docker":
        request.getfixturevalue("dockerd")
    env = surroundings(tmp_path / "d")
    command = agentbox_argv("drill", "--json", "--backend", backend)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    one = Held(tmp_path / "d", done.returncode, done.stdout, done.stderr)
    assert (one.code, one.not_passed, one.left()) == (0, {}, []), one.out or one.err
    assert len(one.score["acts"]) > len(STEPS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("bystander")
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    """Also one that comes again while it cleans up."""
    folder = tmp_path / "d"
    env = surroundings(folder)
    one = subprocess.Popen(
        argv("--backend", "cgroup"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert one.stderr
    until = "pause" if number == signal.SIGINT else "start"
    for line in one.stderr:
        if line.endswith(f"drill: {until}\n"):
            one.send_signal(number)
        elif line.endswith("drill: clean up\n"):
            one.send_signal(signal.SIGINT)
    out, _ = one.communicate(timeout=60)
    assert one.returncode == code
    assert out == ""
    assert Held(folder, code, "", "").left() == []


def test_the_folder_of_a_drill_that_was_killed_goes_with_the_next(tmp_path: Path) -> None:
    """Not while its fleet lives, nor a folder that does not prove whose it is, nor that of a drill that goes on."""
    folder = tmp_path / "d"
    env = surroundings(folder)
    others = [folder / "tmp" / f"agentbox-drill-{name}" for name in ("00000000", "00000001", "00000002", "00000003")]
    mine = Identity.of(os.getpid())
    assert mine is not None
    said = {
        "token": "x",
        "home": str(folder / "home"),
        "boot_id": mine.boot_id,
        "pid": mine.pid,
        "start_ticks": mine.start_ticks,
    }
    texts = ["", json.dumps(said), json.dumps({**said, "boot_id": ""}), json.dumps({**said, "pid": 1 << 80})]
    for other, text in zip(others, texts, strict=True):
        other.mkdir(0o700)
        (other / "drill.json").write_text(text)
    one = subprocess.Popen(argv("--backend", "cgroup"), env=env, stderr=subprocess.PIPE, text=True)
    assert one.stderr
    next(line for line in one.stderr if line.endswith("drill: pause\n"))
    one.kill()
    one.communicate(timeout=60)
    (left,) = set((folder / "tmp").iterdir()) - {*others}
    run = left.name.removeprefix("agentbox-")
    code = "from sandbox.drill import abandoned; print(abandoned.remove())"
    look = [sys.executable, "-c", code]
    seen = subprocess.run(look, env=env, capture_output=True, text=True, check=True)
    assert f"agentbox kill {run}" in seen.stdout and left.exists()
    agentbox("kill", run, home=folder / "home", check=0)
    wait_for(lambda: subprocess.run(look, env=env, capture_output=True, text=True, check=True).stdout == "[]\n")
    assert {*others} == set((folder / "tmp").iterdir())


def test_folder_that_others_could_have_filled_is_no_abandoned_drills(tmp_path: Path) -> None:
    """Its record may be forged, and what it holds may be somebody else's."""
    folder = tmp_path / "d"
    env = surroundings(folder)
    mine = Identity.of(os.getpid())
    assert mine is not None
    gone = json.dumps({**vars(mine), "start_ticks": 1, "token": "x", "home": str(folder / "home")})
    names = ("open", "link", "relative", "proper")
    made = {name: folder / "tmp" / f"agentbox-drill-0000000{place}" for place, name in enumerate(names)}
    for one in made.values():
        one.mkdir(0o700)
        (one / "drill.json").write_text(gone)
    made["open"].chmod(0o777)
    (made["link"] / "drill.json").rename(folder / "forged")
    (made["link"] / "drill.json").symlink_to(folder / "forged")
    (made["relative"] / "drill.json").write_text(gone.replace(str(folder / "home"), "home"))
    code = "from sandbox.drill import abandoned; print(abandoned.remove())"
    seen = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert seen.stdout == "[]\n"
    assert set((folder / "tmp").iterdir()) == set(made.values()) - {made["proper"]}


def test_it_is_kept_if_asked_for(drills: dict[str, Held]) -> None:
    one = drills["kept"]
    assert one.code == 0, one.out or one.err
    kept, run = Path(one.score["kept"]), one.score["run_id"]
    home = one.folder / "home"
    assert not (kept / "drill.json").exists(), "a later drill would take it for abandoned"
    assert (kept / "src" / f"wt-{run}-w00" / "work-w00").read_text()
    assert json.loads(agentbox("ps", "-a", "--json", home=home).stdout)[0]["state"] == "stopped"
    agentbox("verify", run, home=home, check=0)
    text = (one.folder.parent / "page.html").read_text()
    assert f"Drill {run}" in text
    assert not re.search(r"<script|src=|href=|https?:|url\(", text)


def test_it_is_refused_inside_a_box_and_under_an_emergency_stop(home: Path) -> None:
    done = agentbox("run", "--", sys.executable, "-m", "sandbox.cli.main", "drill")
    assert (done.returncode, "inside of a box" in done.stderr) == (75, True), done.stderr
    (home / "EMERGENCY_STOP").touch()
    assert "emergency stop" in agentbox("drill", check=75).stderr


BAD = [
    (("--workers", "2"), "not from 3"),
    (("--workers", "many"), "valid integer"),
    (("--backend", "none"), "no backend"),
    (("--sabotage", "none"), "choose one of no-gate"),
    (("--thresholds", "/nowhere"), "cannot be read"),
    (("--html", "/nowhere/page"), "cannot be written"),
]


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    done = agentbox("drill", home=Path(os.devnull), env={"TMPDIR": str(tmp_path)}, check=2)
    assert done.stderr == agentbox("ps", home=Path(os.devnull), check=2).stderr
    assert len(done.stderr.splitlines()) == 1 and os.listdir(tmp_path) == []


@pytest.mark.parametrize(("options", "said"), BAD)
def test_bad_input(home: Path, options: tuple[str, ...], said: str) -> None:
    done = agentbox("drill", *options, check=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not home.exists()


def test_a_page_that_cannot_be_written_costs_no_score(drills: dict[str, Held]) -> None:
    one = drills["no page"]
    assert one.code == 2 and one.not_passed == {}
    assert "/dev/full cannot be written" in one.err.splitlines()[-1]
    assert one.left() == []


TABLES = [
    ("a", "is no TOML"),
    ("[other]", "unknown table"),
    ("[thresholds]\nrows = { pass = 1 }", "unknown threshold"),
    ("[thresholds]\norphans = 1", "is not like"),
    ("[thresholds]\norphans = { pass = 'x' }", "is no number"),
    ("[thresholds]\norphans = { pass = 2, investigate = 1 }", "below pass"),
    ("thresholds = 1", "is no table"),
    ("[pace]\nspeed = 1", "unknown pace"),
    ("[pace]\ncalls = []", "is no list"),
    ("[pace]\ngrace = -1", "is no number"),
    ("[pace]\ngrace = nan", "is no number"),
]


@pytest.mark.parametrize(("text", "said"), TABLES)
def test_a_table_that_makes_no_sense(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(AgentboxError, match=said) as error:
        load(str(tmp_path / "t.toml"))
    assert error.value.code == 2


def test_a_table_changes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[thresholds]\norphans = { pass = 1 }\n[pace]\nterm = 9\n")
    table = load(str(tmp_path / "t.toml"))
    assert (table.thresholds["orphans"].passes, table.thresholds["orphans"].investigate) == (1, 1)
    assert (table.pace.term, table.pace.grace) == (9, Table().pace.grace)
    assert table.thresholds["record"] == THRESHOLDS["record"]


@pytest.mark.parametrize(
    ("value", "verdict"), [(0, "pass"), (10, "pass"), (10.1, "investigate"), (30.1, "fail"), (None, "fail")]
)
def test_a_verdict(value: float | None, verdict: str) -> None:
    found = {row.name: row for row in rows({"time_to_quiet": Measured(value)}, Table())}
    assert found["time_to_quiet"].verdict == verdict
    assert found["orphans"].verdict == "fail", "what was not measured is not passed"


def test_the_page_escapes_what_it_shows() -> None:
    score = Score("r", "cgroup", 3, None, rows({"record": Measured(1, "<script>alert(1)</script>\x1b[2J")}, Table()))
    text = page(score)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
