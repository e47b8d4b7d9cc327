"""The push guard: in a task's worktree, git pushes to `agent/*` only. The user's own hooks run as before.

The worktree alone gets a hooks directory (`core.hooksPath` in its config.worktree), where each hook calls the one
that would have run without it, found anew each time. A guard against mistakes: `git push --no-verify` passes it.
Sources: githooks(5), git-worktree(1) CONFIGURATION FILE, git-config(1).
"""

from __future__ import annotations

import os

from sandbox.worktree.git import git

ALWAYS = (
    "applypatch-msg",
    "commit-msg",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-merge",
    "post-rewrite",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "prepare-commit-msg",
    "sendemail-validate",
)
IF_THERE = ("post-index-change", "push-to-checkout", "reference-transaction")
"""Hooks whose mere presence changes or slows what git does: passed on only if the user has them at the start."""

_HOOK = r"""#!/bin/sh
# Put here by agentbox for this worktree: pushes go to agent/* only; then your own hook runs, if there is one.
name=${0##*/}
dir=${0%/*}
if [ "$name" = pre-push ]; then
    refs=$(cat)
    bad=$(printf '%s\n' "$refs" | while read -r _ _ remote _; do
        case $remote in
        refs/heads/agent/* | '') ;;
        *) printf '%s ' "$remote" ;;
        esac
    done)
    if [ -n "$bad" ]; then
        printf 'agentbox: push of %srefused: from this worktree only agent/* may be pushed\n' "$bad" >&2
        exit 1
    fi
fi
tab=$(printf '\t')
hooks=$(cat "$dir/../user-hooks" 2>/dev/null)
[ -n "$hooks" ] || hooks=$(git config --show-scope --type=path --get-all core.hooksPath 2>/dev/null |
    sed -n "/^worktree$tab/d; s/^[a-z]*$tab//p" | tail -n 1)
[ -n "$hooks" ] || hooks=$(git rev-parse --git-common-dir)/hooks
hook=$hooks/$name
[ -x "$hook" ] && [ ! "$hook" -ef "$0" ] || exit 0
[ "$name" = pre-push ] || exec "$hook" "$@"
[ -n "$refs" ] || exec "$hook" "$@" </dev/null
printf '%s\n' "$refs" | "$hook" "$@"
"""


def enable_worktree_config(common: str) -> None:
    """Turn on extensions.worktreeConfig, as git-worktree(1) tells to. Raises AgentboxError. Call it under the lock.

    core.bare and core.worktree then hold for every worktree, so they move to the main one's own file first.
    """
    config = ("config", "--file", f"{common}/config")
    if git(*config, "--type=bool", "--get", "extensions.worktreeConfig", cwd=common, check=False).line == "true":
        return
    for key in ("core.bare", "core.worktree"):
        asked = git(*config, "--get", key, cwd=common, check=False)
        if asked.code == 0 and not (key == "core.bare" and asked.line == "false"):
            git("config", "--file", f"{common}/config.worktree", key, asked.line, cwd=common)
            git(*config, "--unset-all", key, cwd=common)
    git(*config, "extensions.worktreeConfig", "true", cwd=common)


def install(path: str, git_dir: str, common: str) -> None:
    """Put the guard into the worktree at `path`. Raises AgentboxError or OSError."""
    before = git("config", "--worktree", "--type=path", "--get", "core.hooksPath", cwd=path, check=False)
    folder = f"{git_dir}/agentbox/hooks"
    os.makedirs(folder, exist_ok=True)
    with open(f"{git_dir}/agentbox/user-hooks", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(before.line if before.code == 0 else "")
    users = before.line if before.code == 0 and before.line else _hooks_path(path) or f"{common}/hooks"
    first = f"{folder}/{ALWAYS[0]}"
    with open(first, "w", encoding="ascii") as file:
        file.write(_HOOK)
    os.chmod(first, 0o755)
    there = [name for name in IF_THERE if os.access(os.path.join(path, users, name), os.X_OK)]
    for name in (*ALWAYS[1:], *there):
        os.link(first, f"{folder}/{name}")
    git("config", "--worktree", "core.hooksPath", folder, cwd=path)


def _hooks_path(path: str) -> str:
    """core.hooksPath as the user has set it: our own calls override it on the command line."""
    asked = git("config", "--show-scope", "--type=path", "-z", "--get-all", "core.hooksPath", cwd=path, check=False)
    words = asked.fields
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return next((value for scope, value in reversed(pairs) if scope not in ("command", "worktree")), "")
