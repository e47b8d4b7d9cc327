"""The git command as this package uses it: without hooks, prompts, inherited repository or background work.

What a caller's environment says of a repository (a hook sets GIT_DIR and GIT_INDEX_FILE) is forgotten: the
directory alone decides. Hooks are off because a worker can write them, and this runs outside of its box; filters
that the repository configures still run, as they do for any git command. Sources: git(1), githooks(5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sandbox.errors import AgentboxError
from sandbox.kernel.spawn import capture

REPOSITORY_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
"""What binds a git command to a repository (`git rev-parse --local-env-vars`), and two more that do the same."""

_FORGOTTEN = frozenset(
    {
        *REPOSITORY_VARIABLES,
        "GIT_EXTERNAL_DIFF",
        "GIT_GLOB_PATHSPECS",
        "GIT_ICASE_PATHSPECS",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NOGLOB_PATHSPECS",
        "GIT_REFLOG_ACTION",
    }
)
_QUIET = {
    "GIT_EDITOR": "false",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_OPTIONS = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
)
SECONDS = 60.0


class GitError(AgentboxError):
    """A git command failed; `status` is its exit status, or None if it did not end by itself."""

    status: int | None = None


@dataclass(frozen=True)
class Done:
    """`out`: stdout, where bytes that are no UTF-8 are surrogates (PEP 383)."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        return self.out.strip("\n")

    @property
    def fields(self) -> list[str]:
        """What `-z` separates."""
        return self.out.split("\0")[:-1]


def git(
    *args: str,
    cwd: str,
    seconds: float = SECONDS,
    check: bool = True,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    stop: Callable[[], object] | None = None,
) -> Done:
    """Run git in `cwd`. `check`: a status other than 0 is a GitError of one line, as a missing git always is.

    A command that has not ended after `seconds`, or when `stop()` says so, is ended and a GitError.
    """
    try:
        code, out, err = capture(
            ["git", *_OPTIONS, *map(os.fsencode, args)], _environment(env or {}), cwd, seconds, os.fsencode(stdin), stop
        )
    except InterruptedError:
        raise GitError(f"git {_verb(args)} was ended: a stop was asked for") from None
    except TimeoutError:
        raise GitError(f"git {_verb(args)} did not end within {seconds:g} s", fix=f"see {cwd}") from None
    except FileNotFoundError:
        if os.path.isdir(cwd):
            raise GitError("git was not found", fix="install git") from None
        raise GitError(f"{cwd} does not exist", fix="go to a directory that does") from None
    except OSError as error:
        raise GitError(f"git could not be started in {cwd}: {error.strerror}") from None
    done = Done(code, os.fsdecode(out), os.fsdecode(err))
    if check and code != 0:
        failure = GitError(f"git {_verb(args)} failed: {_reason(done)}", fix=_way_out(done.err))
        failure.status = code
        raise failure
    return done


def _environment(more: Mapping[str, str]) -> dict[bytes, bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
    return {os.fsencode(name): os.fsencode(value) for name, value in {**kept, **_QUIET, **more}.items()}


def _verb(args: tuple[str, ...]) -> str:
    """`worktree add`, `status`: the words that name a command, for an error line."""
    words = [word for word in args if not word.startswith("-")]
    two = words[:1] and words[0] in ("worktree", "submodule", "stash")
    return " ".join(words[: 2 if two else 1])


def _reason(done: Done) -> str:
    lines = [line for line in done.err.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:]
    text = "; ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in told[:2])
    return text[:400] or f"exit status {done.code}"


def _way_out(err: str) -> str:
    if "dubious ownership" in err:
        return "trust it with git config --global --add safe.directory DIR, if it is yours"
    return ""
