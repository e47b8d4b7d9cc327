"""A real terminal: a pane of tmux with a shell in it, whose screen can be read and whose keys can be pressed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.support import agentbox_argv, agentbox_env, wait_for

PROMPT = "here>"


class Terminal:
    """80 columns and 24 lines. `folder`: where its socket is and its shell starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tmux = ["tmux", "-S", str(folder / "s"), "-f", "/dev/null"]

    def open(self) -> None:
        env = {**agentbox_env(), "TERM": "xterm"}
        subprocess.run([*self.tmux, "new", "-d", "-x", "80", "-y", "24", "sh -i"], cwd=self.folder, env=env, check=True)
        self.type("PS1='her''e> '; clear")
        self.shows(PROMPT)

    def close(self) -> None:
        subprocess.run([*self.tmux, "kill-server"], check=False, capture_output=True)

    def _ask(self, *words: str) -> str:
        return subprocess.run([*self.tmux, *words], check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        return self._ask("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self._ask("send-keys", *keys)

    def type(self, line: str) -> None:
        self._ask("send-keys", "-l", line)
        self.press("Enter")

    def shows(self, *texts: str, seconds: float = 60) -> str:
        """Wait until all of `texts` stand on the screen; the screen."""

        def there() -> bool:
            seen = self.screen()
            return all(text in seen for text in texts)

        try:
            wait_for(there, seconds)
        except AssertionError:
            raise AssertionError(f"{texts} not on the screen:\n{self.screen()}") from None
        return self.screen()

    def top(self) -> None:
        self.type("clear; " + shlex.join(agentbox_argv("top", "--interval", "0.2s")))
        self.shows("emergency stop")

    def settings(self) -> str:
        """What stty says of the terminal, and whether the other screen is on and the cursor is shown."""
        file = self.folder / "stty"
        file.unlink(missing_ok=True)
        self.type("stty -a > stty.new; mv stty.new stty; clear")
        wait_for(file.exists)
        return file.read_text() + self._ask("display", "-p", "#{alternate_on} #{cursor_flag}")

    def pid_of_top(self) -> int:
        """The process in front."""
        pane = self._ask("display", "-p", "#{pane_pid}").strip()
        children = Path(f"/proc/{pane}/task/{pane}/children")
        (pid,) = wait_for(lambda: children.read_text().split())
        return int(pid)
