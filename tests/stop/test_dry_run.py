"""`kill --dry-run`: the sockets of a run and who outside uses them, with the daemon and its clients really there."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.kernel.sockets import Row, attributes, listening, messages, parse_tcp, parse_unix
from tests.stop.stage import BACKEND, new_id
from tests.support import agentbox, is_alive, wait_for

DAEMON = """
import os, socket, sys, threading
where, accepts = sys.argv[1], sys.argv[2] == "accepts"
def unix(name, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(name)
    one.listen()
    return one
def tcp(family, address):
    one = socket.socket(family)
    one.bind((address, 0))
    one.listen()
    return one
listeners = {
    "tcp": tcp(socket.AF_INET, "127.0.0.1"),
    "any": tcp(socket.AF_INET6, "::"),
    "path": unix(where + "/s.sock"),
    "abstract": unix("\\0agentbox-test-" + where),
}
def serve(one):
    kept = []
    while True:
        kept.append(one.accept())
for one in listeners.values():
    if accepts:
        threading.Thread(target=serve, args=(one,), daemon=True).start()
with open(where + "/new", "w") as file:
    for name, one in listeners.items():
        address = one.getsockname()
        print(name, address[1] if isinstance(address, tuple) else "-", file=file)
os.rename(where + "/new", where + "/ready")
threading.Event().wait()
"""
CLIENT = """
import socket, sys, threading
where, mark, *ports = sys.argv[1:]
kept = [socket.create_connection(("127.0.0.1", int(port))) for port in ports]
for name in (where + "/s.sock", "\\0agentbox-test-" + where):
    one = socket.socket(socket.AF_UNIX)
    one.connect(name)
    kept.append(one)
open(where + "/" + mark, "w").close()
threading.Event().wait()
"""


class Daemon:
    """A run with a daemon that listens four times, and its clients in the run and outside."""

    def __init__(self, folder: Path, bed: str, accepts: bool) -> None:
        self.folder, self.run_id = folder, new_id("dry")
        command = [sys.executable, "-c", DAEMON, str(folder), "accepts" if accepts else "waits"]
        agentbox("run", "-d", "--run-id", self.run_id, "--backend", BACKEND[bed], "--", *command, check=0)
        wait_for((folder / "ready").exists, 30)
        rows = dict(line.split() for line in (folder / "ready").read_text().splitlines())
        self.ports = [rows["tcp"], rows["any"]]
        self.addresses = {
            f"127.0.0.1:{rows['tcp']}",
            f"[::]:{rows['any']}",
            f"{folder}/s.sock",
            f"@agentbox-test-{folder}",
        }
        self.clients: list[subprocess.Popen[str]] = []

    def client_command(self, name: str) -> list[str]:
        return [sys.executable, "-c", CLIENT, str(self.folder), name, *self.ports]

    def client_outside(self, name: str = "outside") -> subprocess.Popen[str]:
        client = subprocess.Popen(self.client_command(name), text=True)
        self.clients.append(client)
        wait_for((self.folder / name).exists, 30)
        return client

    def client_inside(self) -> None:
        agentbox("spawn", "-d", self.run_id, "--task", "client", "--", *self.client_command("inside"), check=0)
        wait_for((self.folder / "inside").exists, 30)

    def shown(self) -> dict[str, Any]:
        (found,) = json.loads(agentbox("kill", self.run_id, "--dry-run", "--json", check=0).stdout)
        return dict(found)

    def close(self) -> None:
        agentbox("kill", self.run_id)
        for client in self.clients:
            client.kill()
            client.wait()


@pytest.fixture
def daemon(tmp_path: Path, home: Path, bed: str, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    one = Daemon(tmp_path, bed, accepts=getattr(request, "param", True))
    yield one
    one.close()


@pytest.mark.bed("host", "nspawn-user")
@pytest.mark.parametrize("daemon", [True, False], ids=["accepted", "not accepted"], indirect=True)
def test_it_names_the_client_outside_and_no_other(daemon: Daemon) -> None:
    daemon.client_inside()
    assert [one["used_by"] for one in daemon.shown()["listening"]] == [[]] * 4
    outside = daemon.client_outside()
    seen = daemon.shown()
    main = next(one["pid"] for one in seen["processes"] if "accepts" in one["argv"] or "waits" in one["argv"])
    assert {one["address"] for one in seen["listening"]} == daemon.addresses
    assert [one["kind"] for one in seen["listening"]] == ["tcp", "tcp", "unix", "unix"]
    for one in seen["listening"]:
        assert [holder["pid"] for holder in one["holders"]] == [main], one
        assert [user["pid"] for user in one["used_by"]] == [outside.pid], one
        assert (one["used_from"], one["used_by_unseen"]) == ([], 0)
        assert one["used_by"][0]["argv"][0] == sys.executable
    assert seen["listening_unknown"] == []

    text = agentbox("kill", daemon.run_id, "--dry-run", check=0).stdout
    assert f"listens on tcp 127.0.0.1:{daemon.ports[0]}: pid {main} (" in text
    assert text.count(f"; used by pid {outside.pid} (") == 4
    alive = {one["pid"] for one in seen["processes"]}
    assert all(map(is_alive, [*alive, outside.pid])), "a dry run ends nothing"

    agentbox("kill", daemon.run_id, check=0)
    assert not any(map(is_alive, alive))
    assert is_alive(outside.pid)


def test_who_has_left_is_not_named(daemon: Daemon) -> None:
    outside = daemon.client_outside()
    outside.kill()
    outside.wait()
    seen = daemon.shown()
    assert [(one["used_by"], one["used_by_unseen"]) for one in seen["listening"]] == [([], 0)] * 4
    text = agentbox("kill", daemon.run_id, "--dry-run", check=0).stdout
    assert text.count("used by nobody outside") == 4


def test_a_connection_that_its_client_closed_long_ago(daemon: Daemon) -> None:
    """The daemon has not noticed, and the kernel has forgotten the client's end: nobody is to be named."""
    with socket.create_connection(("127.0.0.1", int(daemon.ports[0]))) as client:
        port = client.getsockname()[1]
        (one, *_) = (one for one in daemon.shown()["listening"] if one["kind"] == "tcp")
        assert [user["pid"] for user in one["used_by"]] == [os.getpid()]
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)

    def rows() -> list[Row]:
        return [row for row in parse_tcp(Path("/proc/net/tcp").read_bytes()) if port in (row.local[1], row.remote[1])]

    wait_for(lambda: [row.remote[1] for row in rows()] == [port], 90, "the client's end stays")
    (one, *_) = (one for one in daemon.shown()["listening"] if one["kind"] == "tcp")
    assert (one["used_by"], one["used_from"], one["used_by_unseen"]) == ([], [], 0)


def test_a_client_on_another_host_is_named_by_its_address(daemon: Daemon) -> None:
    """It has no socket in this network namespace: here that is a veth pair's other end."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    name, mine, theirs = f"ab{os.getpid() % 100000}", "10.213.7.1", "10.213.7.2"
    there = subprocess.Popen(["unshare", "-n", "sleep", "900"])
    try:
        own = os.readlink("/proc/self/ns/net")
        wait_for(lambda: os.readlink(f"/proc/{there.pid}/ns/net") != own)
        ip = ["ip", "link", "add", name, "type", "veth", "peer", "name", "far", "netns", str(there.pid)]
        if subprocess.run(ip, capture_output=True).returncode:
            pytest.skip("no veth pair can be made")
        subprocess.run(["ip", "address", "add", f"{mine}/30", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        enter = ["nsenter", "-n", "-t", str(there.pid)]
        subprocess.run([*enter, "ip", "address", "add", f"{theirs}/30", "dev", "far"], check=True)
        subprocess.run([*enter, "ip", "link", "set", "far", "up"], check=True)
        code = f"import socket; s = socket.create_connection(('{mine}', {daemon.ports[1]})); print(); input()"
        with subprocess.Popen([*enter, sys.executable, "-uc", code], stdin=-1, stdout=-1, text=True) as client:
            assert client.stdout and client.stdin
            client.stdout.readline()
            (one,) = (one for one in daemon.shown()["listening"] if one["address"].startswith("[::]"))
            client.stdin.write("\n")
        (address,) = one["used_from"]
        assert address.startswith(f"{theirs}:") and one["used_by"] == []
    finally:
        there.kill()
        there.wait()


def test_another_network_namespace_is_no_answer(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    run_id = new_id("dry")
    agentbox("run", "-d", "--run-id", run_id, "--", "unshare", "-n", "sleep", "900", check=0)
    own = os.readlink("/proc/self/ns/net")

    def pid_of() -> int:
        (found,) = json.loads(agentbox("kill", run_id, "--dry-run", "--json", check=0).stdout)
        return int(found["processes"][0]["pid"])

    pid = wait_for(pid_of)
    wait_for(lambda: os.readlink(f"/proc/{pid}/ns/net") != own)
    (shown,) = json.loads(agentbox("kill", run_id, "--dry-run", "--json", check=0).stdout)
    assert shown["listening_unknown"] == [{"why": "in another network namespace", "pids": [pid]}]
    text = agentbox("kill", run_id, "--dry-run", check=0).stdout
    assert f"could not tell what pid {pid} listens on: in another network namespace" in text
    agentbox("kill", run_id, check=0)


def test_a_client_that_cannot_be_looked_into(tmp_path: Path) -> None:
    """As a plain user, who can't see what root's processes have open: there is one, and nobody can be named."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    code = f"""
import os, socket, sys
sys.path[:0] = {sys.path!r}
from sandbox.kernel.sockets import listening
one = socket.socket(socket.AF_UNIX)
one.bind("\\0agentbox-unseen-{tmp_path}")
one.listen()
print(flush=True)
input()
(found,) = listening([os.getpid()], 5).listeners
print(found.users, found.unseen)
"""
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", sys.executable, "-c", code]
    with subprocess.Popen(drop, stdin=-1, stdout=-1, text=True) as child, socket.socket(socket.AF_UNIX) as client:
        assert child.stdout and child.stdin
        child.stdout.readline()
        client.connect(f"\0agentbox-unseen-{tmp_path}")
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[] 1\n"


def test_what_the_kernel_does_not_list_is_no_answer() -> None:
    """A time that is over before it has answered stands for a kernel without it."""
    seen = listening([os.getpid()], -1.0)
    assert seen.listeners == [] and len(seen.untold) == 1


@given(st.binary(max_size=200))
def test_garbage_of_the_kernel_is_passed_over(data: bytes) -> None:
    assert all(isinstance(kind, int) for kind, _ in messages(data))
    attributes(data)
    parse_unix(data)
    list(parse_tcp(data))


def test_a_message_that_lies_of_its_length() -> None:
    good = struct.pack("=IHHII", 20, 20, 0, 1, 0) + b"abcd"
    assert list(messages(good + struct.pack("=IHHII", 2**31, 20, 0, 1, 0))) == [(20, b"abcd")]
    assert list(messages(struct.pack("=IHHII", 0, 20, 0, 1, 0) + good)) == []
    assert attributes(struct.pack("=HH", 8, 2) + b"abcd" + struct.pack("=HH", 0, 3)) == {2: b"abcd"}


def test_kill_itself_loads_none_of_it() -> None:
    code = "import sys; import sandbox.cli.kill; print([n for n in sys.modules if 'sockets' in n or 'psutil' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
