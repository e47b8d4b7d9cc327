"""What a stop acts on: the boxes of one run, or of one task, as they are found at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandbox.boxes.base import Backend, Box, Unavailable

if TYPE_CHECKING:
    from sandbox.control.stop import Stop


@dataclass
class Target:
    """`hint`: the cgroup that the manifest names, if it could be read. `unreachable`: filled by `boxes`.

    `more`: further backends to ask from the second look on, when the first kill has been done: finding out
    about them may take reading a large record.
    """

    run_id: str
    task_id: str | None
    order_path: str
    backends: list[Backend]
    hint: str | None = None
    unreachable: list[str] = field(default_factory=list)
    more: Callable[[], list[Backend]] | None = None
    record_before_own_end: Callable[[Stop], None] = lambda stop: None

    _looked: bool = False
    _located: list[tuple[Backend, Box]] = field(default_factory=list)

    def locate(self) -> None:
        """Look before the order is written: then nothing stands between it and the freeze of what is there.

        Not for a target with a backend that may have to be waited for: nothing holds up an order.
        """
        self._located = list(self._found())

    def located(self) -> list[tuple[Backend, Box]]:
        """What `locate` found, the first time that it is asked for: a later look is the better one."""
        located, self._located = self._located, []
        return located

    def boxes(self) -> list[tuple[Backend, Box]]:
        """The boxes that exist now, looked for afresh: what a start added since is among them."""
        return list(self.each())

    def each(self) -> Iterator[tuple[Backend, Box]]:
        """The same, one by one as they are found."""
        if self._looked and self.more:
            self.backends, self.more = [*self.backends, *self.more()], None
        self._looked = True
        yield from self._found()

    def _found(self) -> Iterator[tuple[Backend, Box]]:
        seen: set[tuple[str, str]] = set()
        self.unreachable = []
        for backend in self.backends:
            try:
                boxes = self._of(backend)
            except Unavailable as error:
                self.unreachable.append(f"{backend.name}: {error}")
                continue
            for box in boxes:
                if box.cgroup and (backend.name, box.cgroup) in seen:
                    continue
                seen.add((backend.name, box.cgroup or ""))
                yield backend, box

    def _of(self, backend: Backend) -> list[Box]:
        if self.task_id is None:
            return backend.parents(self.run_id, self.hint)
        box = backend.find(self.run_id, self.task_id, self.hint)
        return [box] if box else []
