"""MCP servers that outlive their run or their client; duplicates; and those that are nobody's business."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import inspect, start
from tests.reconcile.looking import (
    Found,
    assert_clean,
    end,
    end_launcher,
    findings,
    in_state,
    kinds,
    one,
    reconcile,
)
from tests.reconcile.servers import npm_servers, pypi_servers
from tests.support import is_alive, wait_for

pytestmark = pytest.mark.usefixtures("runs")

HERE = Path(__file__).parent
STUBBORN = [sys.executable, str(HERE / "stubborn_server.py")]
CLIENT = [sys.executable, str(HERE / "client.py")]


class Agent:
    """A run whose main command is a client with servers; its folder has the configuration that names them."""

    def __init__(self, folder: Path, servers: dict[str, list[str]], **options: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        named = {name: {"command": argv[0], "args": argv[1:]} for name, argv in servers.items()}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": named}))
        (folder / "servers.json").unlink(missing_ok=True)
        given = json.dumps({"servers": list(servers.values()), **options.pop("client", {})})
        before = Path.cwd()
        os.chdir(folder)
        try:
            self.run = start(*CLIENT, given, options=options.pop("options", ()))
        finally:
            os.chdir(before)
        wait_for((folder / "servers.json").exists, 60, "the servers have not answered")
        self.servers: list[int] = json.loads((folder / "servers.json").read_text())

    @property
    def client(self) -> int:
        (main,) = [task for task in inspect(self.run)["task_list"] if task["task_id"] == "main"]
        return int(main["pid"])


def ghosts() -> list[Found]:
    return [found for found in findings() if found["kind"] == "ghost"]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The person's own server, of the same argv, with a client that is alive."""
    process = subprocess.Popen(STUBBORN, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    yield process
    assert process.stdin is not None
    assert process.poll() is None, "the person's own server was ended"
    process.stdin.close()
    end(process)


def test_stubborn_server_of_a_dead_run(tmp_path: Path, own_server: subprocess.Popen[bytes]) -> None:
    """It ignores the end of its input and SIGTERM; the client is gone and so is the launcher."""
    live = Agent(tmp_path / "live", {"mine": STUBBORN})
    agent = Agent(tmp_path / "dead", {"deploy": STUBBORN}, options=("--env", "DEPLOY_TOKEN=canary-77"))
    end_launcher(agent.run)
    os.kill(agent.client, signal.SIGKILL)
    wait_for(lambda: not is_alive(agent.client))
    found = one("ghost")
    evidence = found["evidence"]
    assert (found["severity"], found["run_id"], evidence["server"]) == ("security", agent.run, "deploy")
    assert evidence["recognised_by"] == str(tmp_path / "dead" / ".mcp.json")
    assert evidence["stdin"] == "has no writer left"
    assert evidence["memory"] > 1 << 20 and evidence["age"] > 0 and evidence["cpu"] >= 0
    assert "DEPLOY_TOKEN" in evidence["secret_variables"] and "canary-77" not in json.dumps(found)
    assert found["command"] == f"agentbox kill {agent.run}"
    reconcile("--kill", check=0)
    assert not is_alive(agent.servers[0])
    assert is_alive(own_server.pid) and is_alive(live.servers[0])
    assert_clean()


@pytest.mark.parametrize("stdio", ["pipe", "socket"])
def test_server_that_nobody_talks_to_in_a_live_run(stdio: str, tmp_path: Path, bystander: object) -> None:
    agent = Agent(tmp_path / "a", {"one": STUBBORN, "two": [*STUBBORN, "spin"]}, client={"stdio": stdio})
    assert kinds() == []
    os.kill(agent.client, signal.SIGUSR1)
    wait_for(lambda: len(ghosts()) == 2, 30)
    names = {found["evidence"]["server"]: found for found in ghosts()}
    assert set(names) == {"one", "two"}
    assert names["two"]["evidence"]["cpu"] > names["one"]["evidence"]["cpu"]
    assert names["one"]["command"] == f"kill -KILL {agent.servers[0]}"
    done = reconcile("--kill", check=0)["ended"]
    assert [one["ok"] for one in done] == [True, True]
    assert not any(is_alive(pid) for pid in agent.servers)
    assert is_alive(agent.client) and inspect(agent.run)["state"] == "running"
    assert_clean()


def test_write_end_that_only_the_server_itself_holds(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "a", {"leaky": STUBBORN}, client={"leak": True})
    assert kinds() == []
    os.kill(agent.client, signal.SIGUSR1)
    # Who else holds the pipe is looked for within a bound, so that a busy machine may need another look.
    (found,) = wait_for(ghosts, 30)
    assert found["evidence"]["stdin"] == "has no writer left"


def test_duplicates_in_a_live_run_are_shown_and_kept(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "a", {"first": STUBBORN, "again": STUBBORN})
    other = Agent(tmp_path / "b", {"first": STUBBORN})
    found = one("duplicate_mcp")
    assert found["run_id"] == agent.run and len(found["evidence"]["servers"]) == 2
    assert reconcile("--kill", check=1)["ended"] == []
    assert all(is_alive(pid) for pid in [*agent.servers, *other.servers])


def test_kept_run_keeps_what_is_talked_to(tmp_path: Path) -> None:
    """--on-exit leave: a server without a client is a ghost all the same, the rest stays."""
    agent = Agent(tmp_path / "a", {"one": STUBBORN}, options=("--on-exit", "leave"))
    sleeper = f"{sys.executable} -c 'import time; time.sleep(900)' & exec sleep 900"
    helper = start("sh", "-c", sleeper)
    os.kill(agent.client, signal.SIGKILL)
    wait_for(lambda: kinds() == ["ghost"], 30)
    reconcile("--kill", check=0)
    assert not is_alive(agent.servers[0])
    assert inspect(helper)["processes"] == 2


def test_zombie_is_no_ghost(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "a", {"one": STUBBORN})
    os.kill(agent.servers[0], signal.SIGKILL)
    in_state(agent.servers[0], "Z")
    assert kinds() == []


def test_a_plain_process_with_a_closed_pipe_is_no_server(tmp_path: Path) -> None:
    run = start("sh", "-c", "sleep 900 | sleep 900 & true | sleep 900")
    wait_for(lambda: inspect(run)["processes"] >= 3)
    assert_clean()


@pytest.fixture(scope="session")
def npm() -> Path:
    return npm_servers()


@pytest.fixture(scope="session")
def pypi() -> Path:
    return pypi_servers()


def assert_one_ghost_each(agent: Agent, names: set[str]) -> list[Found]:
    """One ghost a server, whatever its wrappers; all in the run are dead after --kill."""
    end_launcher(agent.run)
    found = [ghost for ghost in ghosts() if ghost["run_id"] == agent.run]
    assert {ghost["evidence"]["server"] for ghost in found} == names
    assert len(found) == len(names)
    pids = [pid for ghost in found for pid in [ghost["evidence"]["pid"], *ghost["evidence"]["wrappers"]]]
    assert len(set(pids)) == len(pids) and all(is_alive(pid) for pid in pids)
    reconcile("--kill", check=0)
    assert not any(is_alive(pid) for pid in pids)
    assert_clean()
    return found


@pytest.mark.limit(600)
def test_real_servers_from_npm(npm: Path, tmp_path: Path) -> None:
    """One behind npx and the shell that it starts, one run by node itself."""
    everything = npm / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    servers = {
        "notes": ["sh", "-c", f"cd '{npm}' && npx -y @modelcontextprotocol/server-memory; true"],
        "all": ["node", str(everything)],
    }
    agent = Agent(tmp_path / "a", servers)
    assert kinds() == []
    found = assert_one_ghost_each(agent, {"notes", "all"})
    wrapped = next(ghost for ghost in found if ghost["evidence"]["server"] == "notes")
    assert wrapped["evidence"]["wrappers"]


@pytest.mark.limit(600)
def test_real_server_from_pypi(pypi: Path, tmp_path: Path) -> None:
    clock = [str(pypi / "bin/mcp-server-time"), "--local-timezone", "UTC"]
    agent = Agent(tmp_path / "a", {"clock": ["sh", "-c", f"{' '.join(clock)}; true"], "two": [*clock[:1]]})
    assert kinds() == []
    assert_one_ghost_each(agent, {"clock", "two"})


@pytest.mark.limit(600)
def test_real_server_without_a_configuration(pypi: Path, tmp_path: Path) -> None:
    """By its shape alone."""
    agent = Agent(tmp_path / "a", {"clock": [str(pypi / "bin/mcp-server-time")]})
    (tmp_path / "a" / ".mcp.json").unlink()
    (found,) = assert_one_ghost_each(agent, {"server-time"})
    assert found["evidence"]["recognised_by"] == "command shape"
