"""Which repository is meant, what a task's worktree and branch in it are called, and the lock that orders changes.

A plain repository, one that is bare, a linked worktree of another and a submodule all count; the worktrees of all
of them stand beside the main one (or the bare directory). Sources: git-worktree(1), gitrepository-layout(5).
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.errors import USAGE, AgentboxError
from sandbox.worktree.git import git

LOCK = "agentbox.lock"
LOCK_SECONDS = 120.0
OURS = "agent"
ABANDONED = "abandoned"
ANCHORS = "refs/agentbox"
"""Where commits are kept that no branch holds: `refs/agentbox/<run>/<task>/<commit>`."""

_REASON = re.compile(r"agentbox run (?P<run>\S+) task (?P<task>\S+)(?: .*)?", re.DOTALL)


@dataclass(frozen=True)
class Repository:
    """`common`: the git directory that all worktrees share. `main`: the main worktree, or the bare directory."""

    common: str
    main: str


@dataclass(frozen=True)
class Listed:
    """One entry of `git worktree list`; `locked`: the reason, "" if none was given, None if it is not locked."""

    path: str
    head: str | None = None
    branch: str | None = None
    locked: str | None = None
    bare: bool = False

    @property
    def owner(self) -> tuple[str, str] | None:
        """Run and task, if the lock's reason says that it is one of ours."""
        found = _REASON.fullmatch(self.locked or "")
        return (found["run"], found["task"]) if found else None


def discover(folder: str | None) -> Repository:
    """The repository around a directory. Raises AgentboxError where there is none."""
    if folder is None:
        raise AgentboxError("the working directory was deleted", fix="cd to the repository first")
    asked = git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=folder, check=False)
    if asked.code != 0:
        if "not a git repository" in asked.err:
            raise AgentboxError(f"{folder} is in no git repository", fix="cd to one, or leave --worktree out")
        git("rev-parse", "--git-common-dir", cwd=folder)  # raises with git's own reason
    common = os.path.realpath(asked.line)
    return Repository(common, _main(common))


def _main(common: str) -> str:
    if os.path.basename(common) == ".git":
        return os.path.dirname(common)
    for name in ("config.worktree", "config"):  # a submodule names its worktree in one of the two
        asked = git("config", "--file", f"{common}/{name}", "--get", "core.worktree", cwd=common, check=False)
        if asked.code == 0 and asked.line:
            return os.path.realpath(os.path.join(common, asked.line))
    return common


def branch_of(run_id: str, task_id: str, prefix: str = OURS) -> str:
    """`agent/<run>/<task>`. Raises AgentboxError for ids that are no part of a ref (git-check-ref-format(1))."""
    for what, text in (("run id", run_id), ("task id", task_id)):
        if ".." in text or text.endswith((".", ".lock")):
            raise AgentboxError(
                f"{what} {text} can't be part of a branch name",
                fix="choose one without .. and . at its end",
                code=USAGE,
            )
    return f"{prefix}/{run_id}/{task_id}"


def path_of(repository: Repository, run_id: str, task_id: str) -> str:
    """`../wt-<run>-<task>`, seen from the main worktree."""
    return os.path.join(os.path.dirname(repository.main), f"wt-{run_id}-{task_id}")


def lock_reason(run_id: str, task_id: str) -> str:
    return f"agentbox run {run_id} task {task_id} (agentbox prune removes it)"


def relock(common: str, path: str, run_id: str, task_id: str) -> None:
    """Lock a worktree as ours again. Never raises: it is for the way back from another failure."""
    git("worktree", "lock", "--reason", lock_reason(run_id, task_id), path, cwd=common, check=False)


def listed(common: str) -> list[Listed]:
    """All worktrees of a repository, the main one (or the bare directory) first. Raises AgentboxError."""
    records = git("worktree", "list", "--porcelain", "-z", cwd=common).out.split("\0\0")
    found = []
    for record in records:
        lines = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
        if "worktree" in lines:
            branch = lines.get("branch", "").removeprefix("refs/heads/") or None
            one = Listed(lines["worktree"], lines.get("HEAD"), branch, lines.get("locked"), "bare" in lines)
            found.append(one)
    return found


def git_dir_of(path: str) -> str | None:
    """The private git directory of the linked worktree at `path`, whether `path` exists or not is not asked of git.

    Told by its `.git` file and the link back (gitrepository-layout(5)), so that a file that a worker put there
    can't name another's.
    """
    try:
        with open(f"{path}/.git", encoding="utf-8", errors="surrogateescape") as file:
            word, _, named = file.read(8192).partition(":")
        folder = os.path.normpath(os.path.join(path, named.strip()))
        with open(f"{folder}/gitdir", encoding="utf-8", errors="surrogateescape") as file:
            back = file.read(8192).strip()
    except OSError:
        return None
    same = word == "gitdir" and os.path.realpath(back) == os.path.realpath(f"{path}/.git")
    return os.path.realpath(folder) if same else None


def admin_dir(common: str, path: str) -> str | None:
    """The private git directory of the worktree at `path`, also where that directory is gone; None if there is none."""
    wanted = os.path.realpath(f"{path}/.git")
    try:
        names = sorted(os.listdir(f"{common}/worktrees"))
    except OSError:
        return None
    for name in names:
        try:
            with open(f"{common}/worktrees/{name}/gitdir", encoding="utf-8", errors="surrogateescape") as file:
                back = file.read(8192).strip()
        except OSError:
            continue
        if os.path.realpath(os.path.join(f"{common}/worktrees/{name}", back)) == wanted:
            return f"{common}/worktrees/{name}"
    return None


def resolve(name: str, folder: str) -> str | None:
    """The commit that a name means in the repository at `folder`, or None."""
    asked = git("rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}", cwd=folder, check=False)
    return asked.line if asked.code == 0 else None


@contextmanager
def locked(common: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the repository's lock: flock(2) on a file of its own. Raises AgentboxError after `seconds`."""
    path = f"{common}/{LOCK}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise AgentboxError(f"{path} can't be opened: {error.strerror}", fix="see who owns the repository") from None
    try:
        _wait_for(fd, path, time.monotonic() + seconds)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int, path: str, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise AgentboxError(f"{path} is held by another agentbox", fix="try again") from None
            time.sleep(0.01)
        except OSError as error:
            raise AgentboxError(f"{path} can't be locked: {error.strerror}") from None


@dataclass(frozen=True)
class Owner:
    """What is kept in a worktree's private git directory. `ready`: it was made whole, and a command may have run.

    `parent_inode`: of the directory that the worktree stands in, to tell a removed one from an unmounted one.
    """

    run_id: str
    task_id: str
    branch: str
    base: str
    parent_inode: int
    ready: bool = False


def owner_path(git_dir: str) -> str:
    return f"{git_dir}/agentbox/owner.json"


def write_owner(git_dir: str, owner: Owner) -> None:
    """Replace it whole. Raises OSError."""
    import json

    os.makedirs(f"{git_dir}/agentbox", exist_ok=True)
    path = owner_path(git_dir)
    with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(vars(owner), file)
    os.replace(f"{path}.new", path)


def read_owner(git_dir: str) -> Owner | None:
    """None where there is none, or none that makes sense: a worker can write it."""
    import json

    try:
        with open(owner_path(git_dir), encoding="utf-8", errors="surrogateescape") as file:
            found = json.loads(file.read(1 << 20))
        owner = Owner(**found)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (owner.run_id, owner.task_id, owner.branch, owner.base)
    sound = all(isinstance(text, str) for text in texts) and isinstance(owner.parent_inode, int)
    return owner if sound and isinstance(owner.ready, bool) else None
