"""`wip: <task> <step>`: what a task's worktree holds now, as a commit that no hook, key or missing name can stop.

While a merge, a rebase or a conflict is under way its state is left alone: the files are kept as a commit beside the
branch. Sources: git-commit(1), git-add(1), git-write-tree(1), RFC 2606 (.invalid).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field

from sandbox.errors import AgentboxError, one_line
from sandbox.worktree import locks
from sandbox.worktree.anchor import anchor
from sandbox.worktree.git import git
from sandbox.worktree.repository import OURS, Owner, git_dir_of, read_owner
from sandbox.worktree.state import WIP, State, count, operation

LARGE = 50 * 1024 * 1024
"""Bytes: a new file that is larger is most likely a build's or a core dump, and would stay in the history."""


@dataclass
class Checkpoint:
    """`commit`: None where there was nothing to commit. `ref`: the branch or ref that holds it.

    `left`: new files that are too large; `ignored`: how many entries git ignores; `unlocked`: left lock files
    that were removed; `note`: why the branch did not move, or "".
    """

    commit: str | None = None
    ref: str | None = None
    message: str = ""
    left: list[str] = field(default_factory=list)
    ignored: int = 0
    unlocked: list[str] = field(default_factory=list)
    note: str = ""


def checkpoint(folder: str, step: str = "", task_id: str | None = None, large: int = LARGE) -> Checkpoint:
    """Commit all that changed in the worktree around `folder`. Raises AgentboxError; then nothing is committed.

    Only in a worktree that was made for a task: anywhere else it would commit to somebody's own branch.
    `step` counts the checkpoints of the branch if it is not given.
    """
    top, git_dir, common, owner = _place(folder)
    done = Checkpoint()
    state = State(owner.run_id, owner.task_id, top, owner.branch, base=owner.base)
    done.unlocked = locks.clear(top, git_dir, common, owner.branch)
    status = git("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignored", cwd=top)
    count(state, status.fields)
    done.ignored = state.ignored
    if not (state.changed or state.untracked or state.conflicts):
        return done
    task = task_id or owner.task_id
    done.message = f"{WIP}{task} {one_line(step) or _next_step(top, state)}"
    done.left = _too_large(top, status.fields, large)
    under_way = operation(git_dir) or ("conflict" if state.conflicts else None)
    if under_way:
        done.note = f"a {under_way} is under way: the branch was left alone"
        _beside(done, top, common, owner)
    else:
        _commit(done, top)
        if done.commit and state.on is None:
            done.ref = anchor(common, owner.run_id, owner.task_id, done.commit)
            done.note = "HEAD is on no branch"
        elif done.commit:
            done.ref = state.on
    return done


def _place(folder: str) -> tuple[str, str, str, Owner]:
    """Top, private and common git directory and owner of the task's worktree around `folder`. Raises AgentboxError."""
    asked = git("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir", cwd=folder, check=False)
    lines = asked.out.splitlines()
    if len(lines) < 2:
        raise AgentboxError(f"{folder} is in no git worktree", fix="go to one made by agentbox run --worktree")
    top, common = os.path.realpath(lines[0]), os.path.realpath(lines[1])
    git_dir = git_dir_of(top)
    owner = read_owner(git_dir) if git_dir else None
    if git_dir is None or owner is None:
        raise AgentboxError(
            f"{top} was not made for a task, so nothing is committed there", fix="agentbox run --worktree makes one"
        )
    return top, git_dir, common, owner


def _next_step(top: str, state: State) -> str:
    scope = [f"{state.base}..HEAD"] if state.base else ["HEAD"]
    found = git("rev-list", "--count", f"--grep=^{WIP}", *scope, cwd=top, check=False)
    return str(int(found.line) + 1) if found.code == 0 else "1"


def _too_large(top: str, fields: list[str], large: int) -> list[str]:
    new = [entry[2:] for entry in fields if entry.startswith("? ")]
    return [name for name in new if _size(f"{top}/{name}") > large]


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _pathspecs(left: list[str]) -> str:
    return "\0".join([":/", *(f":(top,exclude,literal){name}" for name in left)])


def _add(top: str, left: list[str], env: dict[str, str]) -> None:
    args = ["add", "-A", "--pathspec-from-file=-", "--pathspec-file-nul"]
    # An unreadable file or a nested repository that has no commit must not keep the others from being saved.
    done = git(*args, "--ignore-errors", cwd=top, stdin=_pathspecs(left), env=env, check=False)
    if done.code not in (0, 1, 128) or (done.code and "error:" not in done.err):
        git(*args, cwd=top, stdin=_pathspecs(left), env=env)


def _identity(top: str, owner_name: str) -> dict[str, str]:
    """Author and committer where git has none: the task's own, at a domain that can't exist."""
    found: dict[str, str] = {}
    for who in ("AUTHOR", "COMMITTER"):
        if git("var", f"GIT_{who}_IDENT", cwd=top, check=False).code != 0:
            found |= {f"GIT_{who}_NAME": owner_name, f"GIT_{who}_EMAIL": f"{owner_name}@agentbox.invalid"}
    return found


def _commit(done: Checkpoint, top: str) -> None:
    _add(top, done.left, {})
    if git("diff", "--cached", "--quiet", "HEAD", cwd=top, check=False).code == 0:
        done.message = ""
        return
    git(
        "-c", "commit.gpgSign=false", "commit", "-q", "--no-verify", "--no-gpg-sign", "--no-status",
        "--cleanup=verbatim", "-m", done.message, cwd=top, env=_identity(top, OURS),
    )  # fmt: skip
    done.commit = git("rev-parse", "HEAD", cwd=top).line
    inner = git("status", "--porcelain", "-z", "--untracked-files=no", cwd=top, check=False).fields
    if inner:
        done.note = f"not in it: {', '.join(entry[3:] for entry in inner[:3])} (a submodule, or unreadable)"


def _beside(done: Checkpoint, top: str, common: str, owner: Owner) -> None:
    """The files as a commit on top of HEAD, through an index of its own."""
    with tempfile.TemporaryDirectory(prefix="agentbox-") as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index", **_identity(top, OURS)}
        git("read-tree", "HEAD", cwd=top, env=env)
        _add(top, done.left, env)
        tree = git("write-tree", cwd=top, env=env).line
        args = ("commit-tree", "--no-gpg-sign", "-p", "HEAD", "-m", done.message, tree)
        done.commit = git(*args, cwd=top, env=env).line
    done.ref = anchor(common, owner.run_id, owner.task_id, done.commit)
