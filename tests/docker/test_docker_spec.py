"""What a person asks for becomes the body of a create, and nothing else does."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.base import BoxSpec, Command, Limits
from sandbox.boxes.docker_engine import HOME, RUN, TASK, Facts
from sandbox.boxes.docker_spec import (
    Stdio,
    common_git,
    container_name,
    create_body,
    limits_missing,
    parse_mount,
)
from sandbox.errors import AgentboxError

FACTS = Facts("here", True, "cgroupfs", False, ("memory", "pids", "cpus"))


@pytest.fixture
def spec(tmp_path: Path) -> BoxSpec:
    for name in ("ctl", "beat", "steer"):
        (tmp_path / "run" / name).mkdir(parents=True)
    return BoxSpec("/a/home", "r1", "main", str(tmp_path / "run"), container={"image": "i", "cwd": str(tmp_path)})


@pytest.fixture
def engine_socket(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "engine" / "docker.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        yield str(path)


def body(spec: BoxSpec, sock: str | None = None, stdio: Stdio | None = None, **options: Any) -> dict[str, Any]:
    """The body for `spec` with more container options."""
    limits = {key: options.pop(key) for key in ("limits", "run_limits") if key in options}
    env = options.pop("values", {})
    changed = BoxSpec(
        spec.home, spec.run_id, spec.task_id, spec.run_dir, container={**spec.container, **options}, **limits
    )
    command = Command([b"tool", b"--flag"], env)
    return create_body(changed, command, FACTS, stdio or Stdio(), cgroup="/cg/r1/main", parent="/r1/main", socket=sock)


def targets(found: dict[str, Any]) -> dict[str, bool]:
    """Where something is mounted, and whether read-only."""
    return {mount["Target"]: mount.get("ReadOnly", False) for mount in found["HostConfig"]["Mounts"]}


def test_nothing_is_loose_unless_asked_for(spec: BoxSpec) -> None:
    found = body(spec)
    host = found["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"]) == (["ALL"], [], ["no-new-privileges"])
    assert host["Init"] is True
    assert host["RestartPolicy"] == {"Name": "no"}
    assert host["CgroupParent"] == "/r1/main"
    assert not {"Privileged", "PidMode", "IpcMode", "Devices", "Binds"} & set(host)
    assert found["User"] == f"{os.getuid()}:{os.getgid()}"
    assert found["Entrypoint"] == ["tool", "--flag"]
    assert found["Cmd"] == []
    assert found["Healthcheck"] == {"Test": ["NONE"]}, "an image's health check would be a second process"


def test_what_is_asked_for_is_there(spec: BoxSpec) -> None:
    found = body(spec, caps=["NET_ADMIN"], read_only=True, network="none", user="5:6", workdir="/w")
    host = found["HostConfig"]
    assert (host["CapAdd"], host["ReadonlyRootfs"], host["NetworkMode"]) == (["NET_ADMIN"], True, "none")
    assert (found["User"], found["WorkingDir"]) == ("5:6", "/w")


def test_labels_name_the_run_exactly_and_nothing_secret(spec: BoxSpec) -> None:
    found = body(spec, env=["TOKEN"], values={b"TOKEN": b"canary-1", b"OTHER": b"canary-2"})
    labels = found.pop("Labels")
    assert (labels[RUN], labels[TASK], labels[HOME]) == ("r1", "main", "/a/home")
    assert found["Env"] == ["TOKEN=canary-1"], "what was named is passed, and nothing else of the caller's"
    assert "canary" not in repr(labels)


def test_the_runs_own_variables_are_passed(spec: BoxSpec) -> None:
    names = [b"RUN_ID", b"TASK_ID", b"AGENTBOX_RUN_ID", b"AGENTBOX_TASK_ID", b"AGENTBOX_CONTROL", b"AGENTBOX_BEAT"]
    found = body(spec, values={**dict.fromkeys(names, b"x"), b"PATH": b"/host/bin", b"HOME": b"/root"})
    assert sorted(found["Env"]) == sorted(f"{name.decode()}=x" for name in names)


def test_the_order_is_read_only_and_the_marks_are_writable(spec: BoxSpec, engine_socket: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "work")
    found = targets(body(spec, engine_socket, cwd=folder))
    assert found[f"{spec.run_dir}/ctl"] is True
    assert found[f"{spec.run_dir}/steer"] is True
    assert found[f"{spec.run_dir}/beat"] is False
    assert spec.run_dir not in found
    assert found[folder] is False


def test_a_worktree_comes_with_the_git_directory_that_it_shares(spec: BoxSpec, tmp_path: Path) -> None:
    repository, tree = tmp_path / "repo", tmp_path / "tree"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    author = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (["init", "-q", "."], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        repository.mkdir(exist_ok=True)
        subprocess.run(["git", *words], cwd=repository, env=env, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tree)], cwd=repository, env=env, check=True)
    assert common_git(str(tree)) == str(repository / ".git")
    assert common_git(str(repository)) is None
    assert {str(tree), f"{repository}/.git"} <= set(targets(body(spec, cwd=str(tree))))


def test_a_git_file_that_an_agent_has_forged_opens_no_repository(spec: BoxSpec, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    gitdir = victim / ".git" / "worktrees" / "w"
    gitdir.mkdir(parents=True)
    (victim / ".git" / "objects").mkdir()
    (gitdir / "commondir").write_text("../..")
    (gitdir / "gitdir").write_text(f"{victim}/elsewhere/.git\n")
    folder.mkdir()
    (folder / ".git").write_text(f"gitdir: {gitdir}\n")
    assert common_git(str(folder)) is None


@pytest.mark.parametrize("source", ["socket", "folder", "link", "root"])
def test_the_engines_socket_is_refused_however_it_is_reached(
    spec: BoxSpec, engine_socket: str, tmp_path: Path, source: str
) -> None:
    (tmp_path / "link").symlink_to(engine_socket)
    folder = str(Path(engine_socket).parent)
    path = {"socket": engine_socket, "folder": folder, "link": f"{tmp_path}/link", "root": "/"}[source]
    with pytest.raises(AgentboxError, match="holds the docker socket") as caught:
        body(spec, engine_socket, mounts=[f"{path}:/x"], mount_cwd=False)
    assert "--docker-sock" in (caught.value.fix or "")
    (mount,) = [
        mount
        for mount in body(spec, engine_socket, docker_sock=True, mount_cwd=False)["HostConfig"]["Mounts"]
        if mount["Target"] == "/var/run/docker.sock"
    ]
    assert mount["Source"] == engine_socket


def test_the_working_folder_must_not_hold_the_socket_either(spec: BoxSpec, engine_socket: str) -> None:
    with pytest.raises(AgentboxError, match="holds the docker socket"):
        body(spec, engine_socket, cwd=str(Path(engine_socket).parent))


def test_the_root_is_no_working_folder(spec: BoxSpec) -> None:
    with pytest.raises(AgentboxError, match="cannot be mounted") as caught:
        body(spec, cwd="/")
    assert "cd" in (caught.value.fix or "")


def test_what_a_person_mounts_wins_over_the_default(spec: BoxSpec) -> None:
    folder = str(spec.container["cwd"])
    assert targets(body(spec, mounts=[f"{folder}:{folder}/:ro"]))[f"{folder}/"] is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a:/b", ("bind", "/a", "/b", False)),
        ("/a:/b:ro", ("bind", "/a", "/b", True)),
        ("type=bind,source=/a,target=/b,readonly", ("bind", "/a", "/b", True)),
        ("type=bind,src=/a,dst=/b", ("bind", "/a", "/b", False)),
        ("source=/a,destination=/b,ro=true", ("bind", "/a", "/b", True)),
        ("type=volume,source=v,target=/b", ("volume", "v", "/b", False)),
        ("type=tmpfs,target=/b", ("tmpfs", None, "/b", False)),
    ],
)
def test_mounts_are_written_as_for_docker(text: str, expected: tuple[object, ...]) -> None:
    mount = parse_mount(text)
    assert (mount["Type"], mount.get("Source"), mount["Target"], mount["ReadOnly"]) == expected


@pytest.mark.parametrize(
    "text", ["", ":", "a:/b", "/a:b", "/a", "/a:/b:rx", "type=npipe,target=/b", "type=bind,target=/b", "x=1,target=/b"]
)
def test_a_bad_mount_is_one_error_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(AgentboxError, match="bad mount") as caught:
        parse_mount(text)
    assert caught.value.fix


def test_the_tighter_limit_counts(spec: BoxSpec) -> None:
    asked = {"limits": Limits(memory=1 << 28, cpus=0.5), "run_limits": Limits(memory=1 << 30, pids=99)}
    host = body(spec, **asked)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"], host["NanoCpus"]) == (
        1 << 28,
        1 << 28,
        99,
        5 * 10**8,
    )


def test_a_limit_that_the_engine_cannot_hold_is_an_error_or_a_told_downgrade(spec: BoxSpec) -> None:
    bare = Facts("there", False, "cgroupfs", False, ("memory",))
    strict = BoxSpec("/h", "r", "t", "/r", limits=Limits(pids=5), container={"image": "i"})
    with pytest.raises(AgentboxError, match="--pids cannot be applied") as caught:
        limits_missing(strict, bare)
    assert "best-effort" in (caught.value.fix or "")
    lenient = BoxSpec("/h", "r", "t", "/r", limits=Limits(memory=1 << 28, pids=5, best_effort=True))
    assert limits_missing(lenient, bare) == ["--pids cannot be applied: the engine on there has no such controller"]
    of_run = BoxSpec("/h", "r", "t", "/r", run_limits=Limits(memory=1 << 28))
    with pytest.raises(AgentboxError, match="for each container of the run"):
        limits_missing(of_run, bare)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": ""}, "needs an image"),
        ({"privileged": True}, "no container option privileged"),
        ({"pid": "host"}, "no container option pid"),
        ({"restart": "always"}, "no container option restart"),
        ({"network": "container:x"}, "another container's network"),
    ],
)
def test_what_is_not_offered(spec: BoxSpec, options: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentboxError, match=words):
        body(spec, **options)


def test_names_of_two_homes_differ(spec: BoxSpec) -> None:
    other = BoxSpec("/another/home", "r1", "main", "/r")
    assert container_name(spec) != container_name(other)
    assert container_name(spec).startswith("agentbox-r1-main-")


def test_bytes_that_are_no_text_are_refused_not_changed(spec: BoxSpec) -> None:
    with pytest.raises(AgentboxError, match="not UTF-8"):
        create_body(spec, Command([b"\xff"], {}), FACTS, Stdio(), cgroup=None, parent=None, socket=None)
    with pytest.raises(AgentboxError, match=r"variable X .*not UTF-8"):
        body(spec, env=["X"], values={b"X": b"\xff"})
