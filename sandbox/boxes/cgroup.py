"""Boxes that are plain cgroup v2 directories: `<base>/agentbox/<run>/<task>`.

The base is the top of the cgroup2 mount for root, the caller's own delegated cgroup otherwise, and the box
that the caller sits in if it sits in one, so that stopping the outer run stops what runs inside it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from sandbox.boxes.base import Box, BoxSpec, Command, Proof, Unavailable, Usage, host_name
from sandbox.boxes.limits import apply_limits, bound_pids, usable
from sandbox.boxes.ownership import HOME_XATTR as HOME_XATTR
from sandbox.boxes.ownership import home_of as home_of
from sandbox.boxes.ownership import is_ours, is_probe, mark_home, probe_id
from sandbox.boxes.where import TOP, OwnBox, is_parent, own_box
from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.kill import kill_tree, signal_all
from sandbox.kernel.mounts import Mount, cgroup2_mount, cgroup_of
from sandbox.kernel.procfs import Member, photograph
from sandbox.kernel.spawn import Child, ChildFailed, spawn

READY_SECONDS = 30.0
DENIED = (errno.EACCES, errno.EPERM)


_walks: list[list[str]] | None = None


@contextmanager
def one_walk() -> Iterator[None]:
    """For a look at many runs: the whole tree is walked once for all that are at no usual place, as ended ones are."""
    global _walks
    _walks = []
    try:
        yield
    finally:
        _walks = None


class CgroupBackend:
    """Implements boxes.base.Backend. `home` is the absolute AGENTBOX_HOME."""

    name = "cgroup"

    def __init__(self, home: str) -> None:
        self.home = home

    # making a box

    def base(self) -> str:
        """The directory below which this caller's runs go. Raises Unavailable."""
        own = cgroup_of(mount=self._mount())
        return self._base(own, own_box(own) if own else None)

    def _base(self, own: str | None, box: OwnBox | None) -> str:
        mount = self._mount()
        if box:
            return box.path
        if os.geteuid() == 0:
            return mount.point
        if own and os.access(f"{own}/cgroup.procs", os.W_OK) and os.access(own, os.W_OK):
            return own
        from sandbox.boxes.repairs import delegation

        raise Unavailable("no cgroup that this user may write to", fix=delegation(mount.point))

    def controllers(self) -> dict[str, str]:
        base = self.base()
        top = f"{base}/{TOP}"
        return usable(top if os.path.isdir(top) else base)

    def probe(self) -> str:
        """Make, enter, kill and remove a box."""
        group = Cgroup(f"{self.base()}/{TOP}").child(probe_id())
        try:
            make_directories(group.path)
            child = spawn([b"/bin/sh"], {}, [("enter", enter(group))])
            try:
                child.wait_ready(READY_SECONDS)
                if kill_tree(group, time.monotonic() + 5) is not False:
                    raise Unavailable(f"a process in {group.path} could not be killed", fix="see dmesg")
            finally:
                child.abandon()
        except (OSError, ChildFailed) as error:
            raise self._explain(error, group.path) from None
        finally:
            group.remove()
        return f"cgroup v2 at {os.path.dirname(group.path)}"

    def create(self, spec: BoxSpec) -> tuple[Box, list[str]]:
        parent = self._parent_of(spec)
        group = parent.child(spec.task_id)
        made: list[Cgroup] = []
        _refuse_name_of_file(parent, "run id", "--run-id")
        try:
            self._make_parent(parent, made)
            _refuse_name_of_file(group, "task id", "--task")
            given_up = apply_limits(parent, spec.run_limits)
            if made and spec.run_limits.pids is None:
                bound_pids(parent)
            os.mkdir(group.path)
            made.append(group)
            given_up += apply_limits(group, spec.limits)
        except FileExistsError:
            raise AgentboxError(
                f"cgroup {group.path} exists already", fix=f"see `agentbox inspect {spec.run_id}`"
            ) from None
        except (OSError, AgentboxError) as error:
            for one in reversed(made):
                remove_empty(one.path)
            raise (self._explain(error, group.path) if isinstance(error, OSError) else error) from None
        return self._box(group, spec.run_id, spec.task_id), given_up

    def _parent_of(self, spec: BoxSpec) -> Cgroup:
        """Where the run's boxes are or are to be: one place, or a stop would have to look for the others."""
        there = self.parents(spec.run_id) if spec.joins else []
        parent = Cgroup(_path(there[0]) if there else f"{self.base()}/{TOP}/{spec.run_id}")
        own = own_box()
        if own and not f"{parent.path}/".startswith(f"{own.parents[-1]}/"):
            raise AgentboxError(
                f"this is inside of run {own.run_id}, and run {spec.run_id} is not: a stop would miss it",
                fix="start it from outside",
            )
        return parent

    def _make_parent(self, parent: Cgroup, made: list[Cgroup]) -> None:
        """Make the run's parent, unless another task of the run has; `made` then gets it."""
        make_directories(os.path.dirname(parent.path))
        try:
            os.mkdir(parent.path)
        except FileExistsError:
            if not self._is_ours(parent.path):
                raise AgentboxError(
                    f"run id {parent.name} is in use by another AGENTBOX_HOME", fix="choose another --run-id"
                ) from None
            return
        made.append(parent)
        mark_home(parent.path, self.home)

    def start(self, box: Box, command: Command, ready: Callable[[], None] = lambda: None) -> Child:
        group = Cgroup(_path(box))
        try:
            child = spawn(
                command.argv,
                command.env,
                [("enter the box", enter(group)), *command.steps],
                command.before_exec,
            )
        except OSError as error:
            raise AgentboxError(f"cannot fork: {error.strerror}", fix="check pid limits (ulimit -u)") from None
        try:
            ready()
            child.wait_ready(READY_SECONDS)
            self._check_inside(child, group)
        except ChildFailed as error:
            child.abandon()
            fix = "start it from inside of the run (cgroups(7), delegation)" if error.error in DENIED else ""
            raise AgentboxError(f"the child could not {error}", fix=fix) from None
        except BaseException:
            child.abandon()
            raise
        return child

    def adopt(self, box: Box, pid: int) -> None:
        try:
            Cgroup(_path(box)).write("cgroup.procs", str(pid))
        except OSError as error:
            raise self._explain(error, _path(box)) from None

    def _check_inside(self, child: Child, group: Cgroup) -> None:
        """The kernel's word that the child is where it should be before anything of the command runs."""
        where = cgroup_of(child.pid)
        if where != group.path:
            raise ChildFailed("enter the box", errno.ENOENT)

    # finding boxes

    def parents(self, run_id: str, hint: str | None = None) -> list[Box]:
        found: dict[str, None] = {}
        for path in (hint, *self._likely(run_id)):
            if path and os.path.basename(path) == run_id and Cgroup(path).exists():
                found[path] = None
        if not found:
            found = {path: None for path in self._walked() if os.path.basename(path) == run_id}
        return [self._box(Cgroup(path), run_id, None) for path in found if self._is_ours(path)]

    def find(self, run_id: str, task_id: str, hint: str | None = None) -> Box | None:
        for parent in self.parents(run_id, os.path.dirname(hint) if hint else None):
            group = Cgroup(_path(parent)).child(task_id)
            if group.exists():
                return self._box(group, run_id, task_id)
        return None

    def _likely(self, run_id: str) -> list[str]:
        mount = cgroup2_mount()
        where = cgroup_of(mount=mount)
        own = own_box(where) if where else None
        around = [path for path in (own.parents if own else ()) if os.path.basename(path) == run_id]
        try:
            bases = dict.fromkeys((self._base(where, own), self._mount().point))
        except Unavailable:
            return around
        return [*around, *(f"{base}/{TOP}/{run_id}" for base in bases)]

    def _walked(self) -> Iterable[str]:
        if _walks is None:
            return self._runs_below()
        if not _walks:
            _walks.append(list(self._runs_below()))
        return _walks[0]

    def _runs_below(self) -> Iterable[str]:
        """Every `…/agentbox/<run>` directory of the mount, nested ones too."""
        mount = cgroup2_mount()
        if mount is None:
            raise Unavailable("no cgroup v2 mount can be seen", fix="mount -t cgroup2 none /sys/fs/cgroup")
        for group in Cgroup(mount.point).subtree():
            if is_parent(group.path) and not is_probe(group.name, self.home):
                yield group.path

    def _is_ours(self, path: str) -> bool:
        return is_ours(path, os.path.basename(path), self.home)

    # acting on a box: the same for every backend whose boxes are cgroups of this host

    def members(self, box: Box, seconds: float) -> list[Member] | None:
        if self.populated(box) == "unknown":
            return None
        places = Cgroup(_path(box)).places()
        return [replace(member, cgroup=places[member.pid]) for member in photograph(places, seconds)]

    def populated(self, box: Box) -> Proof:
        return _proof(Cgroup(_path(box)).populated())

    def wait_empty(self, box: Box, deadline: float) -> Proof:
        return _proof(Cgroup(_path(box)).wait("populated", False, deadline))

    def freeze(self, box: Box, deadline: float) -> bool:
        group = Cgroup(_path(box))
        try:
            group.freeze()
        except OSError:
            return False
        return deadline > 0 and group.wait("frozen", True, deadline) is True

    def thaw(self, box: Box) -> None:
        Cgroup(_path(box)).thaw()

    def signal(self, box: Box, number: int, skip: frozenset[int] = frozenset()) -> list[int]:
        return signal_all(Cgroup(_path(box)), number, skip=skip | {os.getpid()})

    def kill(self, box: Box, deadline: float) -> Proof:
        return _proof(kill_tree(Cgroup(_path(box)), deadline))

    def usage(self, box: Box) -> Usage:
        return read_usage(Cgroup(_path(box)))

    def destroy(self, box: Box) -> bool:
        group = Cgroup(_path(box))
        return group.populated() is False and group.remove()

    # small parts

    def _mount(self) -> Mount:
        mount = cgroup2_mount()
        if mount is None:
            raise Unavailable("no cgroup v2 mount can be seen", fix="mount -t cgroup2 none /sys/fs/cgroup")
        if not mount.writable:
            raise Unavailable(
                f"{mount.point} is mounted read-only",
                fix=f"mount -o remount,rw {mount.point}, or --backend docker",
            )
        return mount

    def _box(self, group: Cgroup, run_id: str, task_id: str | None) -> Box:
        return Box(self.name, group.path, run_id, task_id, group.path, group.inode(), host_name())

    def _explain(self, error: Exception, path: str) -> Unavailable:
        from sandbox.boxes.repairs import delegation

        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        point = path.split("/" + TOP)[0]
        fix = {
            errno.EROFS: f"mount -o remount,rw {point}",
            **({errno.EACCES: delegation(self._mount().point)} if os.geteuid() else {}),
        }.get(getattr(error, "errno", 0) or 0, "see `agentbox doctor`")
        return Unavailable(f"cannot make a cgroup at {path}: {why}", fix=fix)

    def runs(self) -> Iterator[Box]:
        """The parents of all runs of this home, those in the usual places first. Raises Unavailable.

        So who stops everything has most of it before the whole tree has been walked.
        """
        seen: set[str] = set()
        for path in chain(self._usual(), self._runs_below()):
            if path not in seen and self._is_ours(path):
                seen.add(path)
                yield self._box(Cgroup(path), os.path.basename(path), None)

    def _usual(self) -> Iterator[str]:
        for top in dict.fromkeys(os.path.dirname(path) for path in self._likely("x")):
            yield from (f"{top}/{name}" for name in subdirectories(top) if not is_probe(name, self.home))

    def list(self) -> list[Box]:
        boxes = []
        for path in self._runs_below():
            if self._is_ours(path):
                run_id = os.path.basename(path)
                boxes.append(self._box(Cgroup(path), run_id, None))
                boxes += [self._box(Cgroup(f"{path}/{t}"), run_id, t) for t in subdirectories(path)]
        return boxes


def _refuse_name_of_file(group: Cgroup, what: str, option: str) -> None:
    if os.path.isfile(group.path):
        raise AgentboxError(
            f"{what} {group.name} is the name of a file of every cgroup", fix=f"choose another {option}"
        )


def enter(group: Cgroup) -> Callable[[], None]:
    """A child's step: move itself into `group` (a write of 0 to cgroup.procs)."""
    return lambda: group.write("cgroup.procs", "0")


def read_usage(group: Cgroup) -> Usage:
    """From pids.current, cpu.stat, memory.current and memory.events; counts the subtree where there is no file."""
    usage = Usage(pids=group.number("pids.current"), memory=group.number("memory.current"))
    if usage.pids is None and group.populated() is not None:
        usage.pids = len(group.pids())
    try:
        usage.cpu = group.keyed("cpu.stat")["usage_usec"] / 1e6
    except (OSError, KeyError):
        usage.cpu = None
    try:
        usage.oom_kills = group.keyed("memory.events").get("oom_kill")
    except OSError:
        usage.oom_kills = None
    return usage


def make_directories(path: str) -> None:
    """mkdir -p that another run may do, or undo, at the same time. Raises OSError."""
    for attempt in range(20):
        try:
            os.makedirs(path, exist_ok=True)
            return
        except FileNotFoundError:
            if attempt == 19:
                raise


def remove_empty(path: str) -> None:
    """rmdir of one directory, which fails where something has been put into it."""
    try:
        os.rmdir(path)
    except OSError:
        pass


def subdirectories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _path(box: Box) -> str:
    if box.cgroup is None:
        raise AgentboxError(f"box {box.id} has no cgroup on this host")
    return box.cgroup


def _proof(populated: bool | None) -> Proof:
    return "unknown" if populated is None else "alive" if populated else "empty"
