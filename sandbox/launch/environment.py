"""The environment that a command gets: the caller's own, byte for byte, and the box's names."""

from __future__ import annotations

import os

from sandbox.kernel.procfs import own_environ, started_at
from sandbox.launch import own_dirs
from sandbox.launch.spec import LaunchSpec
from sandbox.manifest.home import RunDir


def environment(spec: LaunchSpec, run: RunDir) -> dict[bytes, bytes]:
    """As inherited (not as the interpreter changed it: PEP 538), the run's own folders, `--env`, what names the box."""
    env = dict(own_environ())
    if spec.detach:
        # Nobody is there to answer a prompt (git(1), credential prompts).
        env.setdefault(b"GIT_TERMINAL_PROMPT", b"0")
    if spec.tree is not None:
        from sandbox.worktree.git import REPOSITORY_VARIABLES

        # A launcher that a hook started names the hook's repository in these: the command would act on that one.
        for name in REPOSITORY_VARIABLES:
            env.pop(name.encode(), None)
        env[b"PWD"] = os.fsencode(spec.tree.path)
    if not spec.image:  # in a container such places are its own anyway
        env.update(own_dirs.variables(run))
    env.update(spec.env)
    named = {
        "RUN_ID": spec.run_id,
        "TASK_ID": spec.task_id,
        "AGENTBOX_RUN_ID": spec.run_id,
        "AGENTBOX_TASK_ID": spec.task_id,
        "AGENTBOX_CONTROL": run.control,
        "AGENTBOX_BEAT": run.beat(spec.task_id),
        # When the machine was booted, in hundredths of a second since 1970: a shell can add its uptime without a fork.
        "AGENTBOX_BOOT": str(int(started_at(0) * 100)),
    }
    env.update({os.fsencode(name): os.fsencode(value) for name, value in named.items()})
    return env
