"""Submodules of a task's worktree: filled from what the repository has, watched, never lost.

A linked worktree has its submodules' repositories in its own git directory, so they go when it goes; git refuses to
remove such a worktree without force (git-worktree(1) BUGS), and does not look what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sandbox.errors import number_of
from sandbox.worktree.git import GitError, git

SECONDS = 600.0


def paths(path: str) -> list[str]:
    """Paths of the submodules of the commit checked out at `path`, from its index. Raises AgentboxError."""
    entries = git("ls-files", "-s", "-z", cwd=path).fields
    return [name for mode, _, name in (_entry(entry) for entry in entries) if mode == "160000"]


def _entry(text: str) -> tuple[str, str, str]:
    head, _, name = text.partition("\t")
    words = head.split(" ")
    return words[0], words[1] if len(words) > 1 else "", name


def present(path: str) -> bool:
    """Is a submodule filled in the worktree at `path`? Never raises."""
    git_dir = git("rev-parse", "--absolute-git-dir", cwd=path, check=False)
    return git_dir.code == 0 and os.path.isdir(f"{git_dir.line}/modules")


def populate(path: str, common: str, stop: Callable[[], object]) -> list[str]:
    """Fill those submodules that the repository itself has, from there, without the network; what could not be done.

    A nested submodule is left as git leaves it: empty.
    """
    if not os.path.isfile(f"{path}/.gitmodules") or not os.path.isdir(f"{common}/modules"):
        return []
    notes = []
    for name, folder in _named(path):
        source = f"{common}/modules/{name}"
        if not os.path.isfile(f"{source}/HEAD"):
            continue
        url = git("config", "--get", f"submodule.{name}.url", cwd=path, check=False).line
        local = ("-c", f"submodule.{name}.url={source}", "-c", "protocol.file.allow=always")
        try:
            git(*local, "submodule", "--quiet", "update", "--", folder, cwd=path, seconds=SECONDS, stop=stop)
            if url:
                git("remote", "set-url", "origin", url, cwd=f"{path}/{folder}", check=False)
        except GitError as error:
            if stop():
                raise
            notes.append(f"submodule {folder} is empty: {error.what}")
    return notes


def _named(path: str) -> list[tuple[str, str]]:
    """Name and path of each submodule of `.gitmodules` that has an entry in the index."""
    known = set(paths(path))
    asked = git(
        "config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$", cwd=path, check=False
    )
    pairs = [entry.partition("\n")[::2] for entry in asked.fields]
    named = [(key.removeprefix("submodule.").removesuffix(".path"), value) for key, value in pairs]
    return [(name, folder) for name, folder in named if folder in known and ".." not in name.split("/")]


def unsaved(path: str, common: str) -> list[str]:
    """What would be lost with the worktree's submodules, a line each. Raises AgentboxError if it can't be told."""
    found = []
    for folder in paths(path):
        sub = f"{path}/{folder}"
        if not os.path.exists(f"{sub}/.git"):
            continue
        status = git("status", "--porcelain", "-z", "--ignored", "--untracked-files=normal", cwd=sub).fields
        if status:
            found.append(f"submodule {folder} has {len(status)} changed, untracked or ignored files")
        commits = git("rev-list", "--reflog", "--all", "HEAD", "--not", "--remotes", cwd=sub).out.split()
        lost = _missing(commits, _source(path, common, folder))
        if lost:
            found.append(f"submodule {folder} has {number_of(lost, 'commit')} not pushed")
        found += [f"{line} in submodule {folder}" for line in unsaved(sub, _common(sub))]
    return found


def _source(path: str, common: str, folder: str) -> str:
    name = next((name for name, where in _named(path) if where == folder), folder)
    return f"{common}/modules/{name}"


def _common(sub: str) -> str:
    return git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=sub).line


def _missing(commits: list[str], source: str) -> int:
    """How many of the commits the repository that the submodule was filled from does not have."""
    if not commits or not os.path.isfile(f"{source}/HEAD"):
        return len(commits)
    asked = "".join(f"{commit}\n" for commit in commits)
    lines = git("cat-file", "--batch-check=%(objecttype)", cwd=source, stdin=asked).out.splitlines()
    return sum(1 for line in lines if line != "commit")
