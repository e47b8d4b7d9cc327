"""What `run` and `spawn` share: their options, and launching what they describe."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from sandbox.boxes.base import Limits
from sandbox.cli import values
from sandbox.cli.arguments import Parser, Value, output, split_command
from sandbox.errors import USAGE, AgentboxError, ReaderGone, warn
from sandbox.harness import BY_COMMAND_LINE
from sandbox.launch.detached import launch_detached
from sandbox.launch.output import LIMIT
from sandbox.launch.run import launch
from sandbox.launch.signals import Dispositions
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import Started
from sandbox.launch.supervise import exit_as
from sandbox.manifest.home import Home

CONTAINER_ONLY = ("mount", "network", "read_only", "cap_add", "user", "workdir", "docker_sock")


def add_options(parser: Parser) -> None:
    """The options that describe a task, the same for `run` and `spawn`."""
    add = parser.add_argument
    add("-d", "--detach", action="store_true", help="run in the background and print the id alone")
    add("--backend", default="auto", metavar="B", help="auto (default), cgroup, systemd or docker")
    add("--image", metavar="IMG", help="run in a container of this image (backend docker)")
    add("--label", action="append", default=[], metavar="K=V", help="free text for the record (repeatable)")
    add(
        "--env",
        action="append",
        default=[],
        metavar="K[=V]",
        help="set a variable, or pass it on (repeatable)",
    )
    add("--memory", action=Value, convert=values.size, metavar="SIZE", help="limit, such as 2g")
    add("--cpus", action=Value, convert=values.cores, metavar="N", help="limit, such as 1.5")
    add(
        "--pids",
        action=Value,
        convert=values.count,
        metavar="N",
        help="limit of processes and threads (usual: 15%% of all)",
    )
    add("--oom-group", action="store_true", help="where memory is short, end all of it and not one process")
    add(
        "--limits",
        choices=["strict", "best-effort"],
        default="strict",
        help="what to do if a limit can't hold",
    )
    _add_course_options(parser)
    _add_container_options(parser)


def _add_course_options(parser: Parser) -> None:
    """How long, where, what is kept, and what is done at the end."""
    add = parser.add_argument
    add(
        "--timeout",
        action=Value,
        convert=values.duration,
        metavar="TIME",
        help="end it after, such as 2h (exit 124), pauses included; 0: never",
    )
    add(
        "--allowance",
        action=Value,
        convert=values.duration,
        metavar="TIME",
        help="between two tool calls, such as 10m: twice that without one is reported as stalled",
    )
    add(
        "--output-limit",
        action=Value,
        convert=values.bound,
        metavar="SIZE",
        help="with -d: how much output is kept, the oldest is dropped (usual: 64m; 0: keep all)",
    )
    add("--worktree", action="store_true", help="give the task a git worktree of its own, at ../wt-RUN-TASK")
    add("--base", metavar="REF", help="where its branch agent/RUN/TASK starts (default: HEAD)")
    add("--on-exit", choices=["kill", "leave"], default="kill", help="what is left when the command ends")
    add("--no-hooks", action="store_true", help="add no hooks to the command line of omp, claude or codex")


def _add_container_options(parser: Parser) -> None:
    add = parser.add_argument_group("containers (with --image)").add_argument
    add("--mount", action="append", default=[], metavar="SPEC", help="as docker's --mount (repeatable)")
    add("--network", metavar="N", help="none, bridge, host or a network's name")
    add("--read-only", action="store_true", help="the root file system can't be written")
    add("--cap-add", action="append", default=[], metavar="CAP", help="keep a capability (repeatable)")
    add("--user", metavar="UID[:GID]", help="instead of the caller's own")
    add("--workdir", metavar="DIR", help="instead of the working directory")
    add("--docker-sock", action="store_true", help="hand the engine's own socket in: opens the box")


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse; the command is what follows the first `--`, byte for byte.

    It begins already at the first word that is no option, if the verb takes no other words.
    """
    if parser.takes_words:
        before, command = split_command(argv)
        if command is None and {"-h", "--help"}.isdisjoint(before):
            raise AgentboxError("no command given", fix=f"{parser.prog} … -- COMMAND", code=USAGE)
        given = parser.parse_args(before)
        given.command = command
    else:
        parser.add_argument("command", nargs=argparse.REMAINDER)
        given = parser.parse_args(list(argv))
        given.command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not given.command:
        raise AgentboxError("no command given", fix=f"{parser.prog} … -- COMMAND", code=USAGE)
    if given.base is not None and not given.worktree:
        raise AgentboxError("--base is for worktrees", fix="add --worktree", code=USAGE)
    if given.output_limit is not None and not given.detach:
        raise AgentboxError("--output-limit is for detached tasks", fix="add -d", code=USAGE)
    if given.image == "":
        raise AgentboxError("--image names no image", fix="give one, or leave --image out", code=USAGE)
    if not given.image and (given_alone := [n for n in CONTAINER_ONLY if getattr(given, n)]):
        option = f"--{given_alone[0].replace('_', '-')}"
        raise AgentboxError(f"{option} is for containers", fix="add --image IMAGE", code=USAGE)
    if given.image and given.oom_group:
        raise AgentboxError("--oom-group is not for containers", fix="leave it or --image out", code=USAGE)
    if given.image and given.backend not in ("auto", "docker"):
        raise AgentboxError(f"--image does not go with --backend {given.backend}", fix="leave one out", code=USAGE)
    return given


def spec_of(given: argparse.Namespace, run_id: str, task_id: str, *, new_run: bool) -> LaunchSpec:
    argv, harness = _with_hooks(given)
    return LaunchSpec(
        run_id=run_id,
        task_id=task_id,
        argv=argv,
        new_run=new_run,
        backend=given.backend,
        image=given.image,
        detach=given.detach,
        env=values.environment(given.env),
        cwd=_cwd(),
        labels=values.labels(given.label),
        limits=_limits(given),
        timeout=given.timeout,
        allowance=given.allowance,
        on_exit=given.on_exit,
        container=_container(given) if given.image else {},
        worktree=given.worktree,
        base=given.base,
        harness=harness,
        output_limit=LIMIT if given.output_limit is None else given.output_limit,
    )


def _limits(given: argparse.Namespace) -> Limits:
    return Limits(given.memory, given.pids, given.cpus, given.limits == "best-effort", given.oom_group or None)


def _with_hooks(given: argparse.Namespace) -> tuple[list[bytes], str | None]:
    """The command line, and the harness whose hooks were added to it; an image may not have what they call."""
    argv = [os.fsencode(word) for word in given.command]
    if given.no_hooks or given.image or os.path.basename(argv[0]) not in BY_COMMAND_LINE:
        return argv, None
    from sandbox.harness.adapters import on_command_line

    argv, harness, note = on_command_line(argv)
    if note:
        warn(note)
    return argv, harness


def _container(given: argparse.Namespace) -> dict[str, Any]:
    """The keys of BoxSpec.container (boxes.docker_spec.KEYS)."""
    wanted = {
        "image": given.image,
        "mounts": given.mount,
        "network": given.network,
        "read_only": given.read_only,
        "caps": given.cap_add,
        "user": given.user,
        "workdir": given.workdir,
        "docker_sock": given.docker_sock,
        "env": [pair.partition("=")[0] for pair in given.env],
    }
    return {key: value for key, value in wanted.items() if value}


def carry_out(spec: LaunchSpec, home: Home, dispositions: Dispositions, printed: str) -> int:
    """Launch in the foreground (and exit as the command did) or detached (and print `printed`)."""
    if spec.detach:
        _warn_of_limits(launch_detached(spec, home, dispositions))
        try:
            output(printed + "\n")
        except (AgentboxError, ReaderGone) as error:
            why = f"{printed} was started, but its id could not be printed"
            fix = f"agentbox inspect {spec.run_id}, or agentbox kill {spec.run_id}"
            raise AgentboxError(f"{why} ({error or 'nobody reads'})", fix=fix) from None
        return 0
    return exit_as(launch(spec, home, dispositions, [], _announce))


def _announce(started: Started) -> None:
    spec, backend = started.spec, started.backend
    _warn_of_limits(started.given_up)
    if spec.new_run:
        warn(f"run {spec.run_id} ({backend.name}); stop it with: agentbox kill {spec.run_id}")
    else:
        stop = f"agentbox kill {spec.run_id} --task {spec.task_id}"
        warn(f"task {spec.task_id} of run {spec.run_id} ({backend.name}); stop it with: {stop}")


def _warn_of_limits(given_up: Sequence[str]) -> None:
    for line in given_up:
        warn(f"{line}; it goes on without this limit")


def _cwd() -> str | None:
    """None where the directory was deleted: the command then finds itself there too, as without agentbox."""
    try:
        return os.getcwd()
    except OSError:
        return None
