"""What `top` shows: the runs and their tasks at one moment, from the record, the kernel and the marks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandbox.boxes.base import Backend, Box, Unavailable, Usage
from sandbox.boxes.registry import local_backends
from sandbox.control import emergency_file
from sandbox.control.pause import of_task, shown_state
from sandbox.control.status import Status, backends_of, status
from sandbox.harness.beat import marks
from sandbox.kernel.usage import memory_of
from sandbox.manifest.fold import Task
from sandbox.manifest.home import Home

MEMBERS_SECONDS = 0.2
MEMBERS_MOST = 300
"""Processes whose memory is added up where the kernel does not count it for the box."""

Key = tuple[str, str | None]
"""A run's id and a task's, or None for the run itself."""
Boxes = dict[Key, tuple[Backend, Box]]


@dataclass
class Row:
    """A run (`task_id` None) or a task. `cpu`: share of one processor, 1.0 is one whole; None: not known.

    `memory` in bytes, and `summed`: added up of its processes. `since` and `age` in seconds. `boundary`: the call
    it is in, or what its marks say else.
    """

    run_id: str
    task_id: str | None
    state: str
    boundary: str = ""
    since: float | None = None
    processes: int | None = None
    cpu: float | None = None
    memory: float | None = None
    summed: bool = False
    age: float | None = None
    branch: str = ""
    live: bool = True

    @property
    def key(self) -> Key:
        return self.run_id, self.task_id


@dataclass
class Frame:
    """`emergency`: ON, off or could not tell. `problems`: what could not be asked.

    `looked`: False before the first look has come back.
    """

    at: float
    rows: list[Row] = field(default_factory=list)
    emergency: str = "off"
    problems: list[str] = field(default_factory=list)
    looked: bool = True


class Sampler:
    """Looks again and again; keeps the processor times of the look before, and which runs are over."""

    def __init__(self, home: Home, show_all: bool = False) -> None:
        self.home, self.show_all = home, show_all
        self._cpu: dict[Key, tuple[float, float]] = {}
        self._over: dict[str, tuple[int, int]] = {}
        self._met: set[str] = set()

    def sample(self) -> Frame:
        """Raises AgentboxError where the state directory can't be listed."""
        on = emergency_file.look(self.home).on
        frame = Frame(time.time(), emergency={True: "ON", False: "off", None: "could not tell"}[on])
        boxes = self._boxes(local_backends(self.home.path), frame)
        for run_id in sorted({*self.home.runs(), *(run for run, _ in boxes)}):
            if (run_id, None) not in boxes and self._known_to_be_over(run_id):
                continue
            one = status(self.home, run_id)
            self._remember(one)
            if one.live or self.show_all or run_id in self._met:
                frame.rows += self._rows(one, boxes, frame)
        return frame

    def _known_to_be_over(self, run_id: str) -> bool:
        seen = not (self.show_all or run_id in self._met)
        return seen and self._over.get(run_id) == self._signature(run_id)

    def _remember(self, one: Status) -> None:
        if one.live:
            self._met.add(one.run_id)
        else:
            self._over[one.run_id] = self._signature(one.run_id)

    def _signature(self, run_id: str) -> tuple[int, int]:
        try:
            info = os.stat(self.home.run_dir(run_id).manifest)
        except OSError:
            return 0, 0
        return info.st_mtime_ns, info.st_size

    def _boxes(self, backends: list[Backend], frame: Frame) -> Boxes:
        found: Boxes = {}
        for one in backends:
            try:
                for box in one.list():
                    found.setdefault((box.run_id, box.task_id), (one, box))
            except Unavailable as error:
                frame.problems.append(f"{one.name}: {error}")
        return found

    def _rows(self, one: Status, boxes: Boxes, frame: Frame) -> list[Row]:
        if one.run.backend == "docker" and not any(run == one.run_id for run, _ in boxes):
            boxes = {**boxes, **self._boxes(backends_of(self.home, one.run)[-1:], frame)}
        row = Row(one.run_id, None, shown_state(self.home, one), age=_age(one.run.created_at), live=one.live)
        self._add_usage(row, one.usage if one.boxes else None, one.boxes)
        if not one.live:
            row.processes = 0 if one.proof == "empty" else None
        tasks = [self._task(one, task, boxes.get((one.run_id, name))) for name, task in one.run.tasks.items()]
        row.boundary = _sum_up(tasks)
        return [row, *tasks]

    def _task(self, one: Status, task: Task, found: tuple[Backend, Box] | None) -> Row:
        said = of_task(one, task.task_id, marks(self.home.run_dir(one.run_id).beat(task.task_id)))
        row = Row(one.run_id, task.task_id, _state(one, task, said.state), branch=task.branch or "")
        row.age, row.live = _age(task.started_at or task.intent_at), said.state != "ended"
        if said.state == "ended":
            row.processes = 0 if one.proof == "empty" or not found else None
            return row
        row.boundary = said.call or {"quiet": "held", "idle": "idle"}.get(said.state, said.state)
        row.since = None if said.since is None else max(0.0, time.time() - said.since)
        if found:
            backend, box = found
            self._add_usage(row, backend.usage(box), [found])
        return row

    def _add_usage(self, row: Row, usage: Usage | None, boxes: list[tuple[Backend, Box]]) -> None:
        if usage is None:
            return
        row.processes, row.memory = usage.pids, usage.memory
        if usage.memory is None and (usage.pids or 0) <= MEMBERS_MOST:
            row.memory, row.summed = _resident(boxes), True
        if usage.cpu is not None:
            now = time.monotonic()
            before, self._cpu[row.key] = self._cpu.get(row.key), (now, usage.cpu)
            if before and now > before[0]:
                row.cpu = max(0.0, (usage.cpu - before[1]) / (now - before[0]))


def _resident(boxes: list[tuple[Backend, Box]]) -> float | None:
    """The memory of all processes, added up; None where one could not be asked."""
    total = 0.0
    for backend, box in boxes:
        members = backend.members(box, MEMBERS_SECONDS)
        if members is None:
            return None
        total += sum(memory_of(member.pid, member.start_ticks) or 0 for member in members)
    return total


def _state(one: Status, task: Task, said: str) -> str:
    if task.state == "failed":
        return "failed"
    if task.state == "exited":
        return task.outcome if task.outcome and task.outcome != "exited" else f"exit {task.code}"
    if not one.live:
        return one.state
    return "starting" if task.state == "intent" else {"quiet": "paused", "call": "in call"}.get(said, "running")


def _sum_up(tasks: list[Row]) -> str:
    """How many are in a call, and how many held; nothing for a run of one."""
    calls = sum(task.state == "in call" for task in tasks)
    held = sum(task.state == "paused" for task in tasks)
    parts = [f"{count} {word}" for count, word in ((calls, "in call"), (held, "held")) if count]
    return ", ".join(parts) if len(tasks) > 1 else ""


def _age(text: str | None) -> float | None:
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(text or "")).total_seconds())
    except (ValueError, TypeError):
        return None
