"""The launcher with every container option, given as JSON: what `agentbox run --image` does.

usage: driver.py RUN_ID OPTIONS -- COMMAND...   (AGENTBOX_HOME and DOCKER_HOST from the environment)

OPTIONS: the keys of BoxSpec.container, and `detach`, `timeout`, `spawn` (a task id: join the run), `memory`.
"""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from sandbox.boxes.base import Limits
from sandbox.errors import AGENTBOX_FAILED, AgentboxError
from sandbox.launch.detached import launch_detached
from sandbox.launch.run import launch
from sandbox.launch.signals import Dispositions
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.supervise import exit_as
from sandbox.launch.terminal import reserve_stdio
from sandbox.manifest.home import Home


def main() -> None:
    dispositions = Dispositions.inherited()
    reserve_stdio()
    run_id, options = sys.argv[1], json.loads(sys.argv[2])
    detach, timeout, task = options.pop("detach", False), options.pop("timeout", None), options.pop("spawn", None)
    limits = Limits(options.pop("memory", None), options.pop("pids", None), options.pop("cpus", None))
    values = {name.encode(): value.encode() for name, value in options.pop("values", {}).items()}
    spec = LaunchSpec(
        run_id,
        task or "main",
        [os.fsencode(word) for word in sys.argv[4:]],
        new_run=task is None,
        backend="docker",
        image=options["image"],
        detach=detach,
        env=values,
        limits=limits,
        timeout=timeout,
        container=options,
    )
    home = Home(os.environ["AGENTBOX_HOME"])
    try:
        if detach:
            launch_detached(spec, home, dispositions)
            return
        ended = launch(spec, home, dispositions, [], lambda *_: None)
    except AgentboxError as error:
        sys.stderr.write(f"agentbox: {error}\n")
        sys.exit(error.code or AGENTBOX_FAILED)
    exit_as(ended)


if __name__ == "__main__":
    main()
