"""Real terminals: panes of a tmux server of the test's own. They type and read; they assert only that words come."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from suite.programs import run_to_end
from testbed.keeper import wait_for

SEEN_SECONDS = 60.0
GONE_SECONDS = 30.0

ENDS = '"$@"; echo "[ended with $?]"; exec cat'
"""What runs a program and says its exit code: tmux's own pane_dead_status can miss the end of a child."""


class Terminals:
    """A tmux server in the foreground, and so a child that ends with the block.

    Args:
        folder: Where its socket lies.
        options: Lines of its configuration.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._socket = folder / "tmux.sock"
        self._configuration = folder / "tmux.conf"
        lines = ["set -g default-terminal tmux-256color", *options]
        self._configuration.write_text("".join(f"{line}\n" for line in lines))
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        words = ["tmux", "-D", "-S", str(self._socket), "-f", str(self._configuration)]
        self._server = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        assert wait_for(self._socket.exists)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._tmux("kill-server")
        self._server.wait(GONE_SECONDS)

    def open(
        self, name: str, words: Sequence[str], size: tuple[int, int] = (80, 24), **environment: str
    ) -> "Terminal":
        """Run a program in a terminal of its own, with ``environment`` put over this process's."""
        given = [word for each in environment.items() for word in ("-e", "=".join(each))]
        columns, lines = map(str, size)
        self._tmux(
            "new-session", "-d", "-s", name, "-x", columns, "-y", lines, *given,
            shlex.join(["sh", "-c", ENDS, "sh", *words]),
        )  # fmt: skip
        return Terminal(self, name)

    def _tmux(self, *words: str) -> str:
        done = run_to_end(
            ["tmux", "-S", str(self._socket), *words], timeout=GONE_SECONDS, check=True
        )
        return done.stdout

    def ask(self, name: str, *words: str) -> str:
        """Do a tmux command on the terminal called ``name``; return what it prints."""
        verb, *others = words
        return self._tmux(verb, "-t", name, *others)


class Terminal:
    """One terminal with a program in it."""

    def __init__(self, server: Terminals, name: str) -> None:
        self._server = server
        self._name = name

    @property
    def text(self) -> str:
        """What stands on it, a line each."""
        return self._server.ask(self._name, "capture-pane", "-p")

    @property
    def styled(self) -> str:
        """The same with its escape sequences."""
        return self._server.ask(self._name, "capture-pane", "-p", "-e")

    def see(self, *patterns: str, seconds: float = SEEN_SECONDS) -> re.Match[str]:
        """Wait until every regular expression is found on it; return the first one's match."""
        found: list[re.Match[str] | None] = []

        def seen() -> bool:
            text = self.text
            found[:] = [re.search(pattern, text) for pattern in patterns]
            return all(found)

        assert wait_for(seen, seconds), f"no {patterns} on {self._name}:\n{self.text}"
        assert found[0] is not None
        return found[0]

    def type(self, line: str) -> None:
        """Type ``line`` at the prompt and press Enter."""
        self._server.ask(self._name, "send-keys", "-l", f":{line}")
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, as tmux(1) calls them."""
        self._server.ask(self._name, "send-keys", *keys)

    def end_program(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        shell = int(self._server.ask(self._name, "display-message", "-p", "#{pane_pid}"))
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        os.kill(int(children[0]), number)

    def exit_code(self) -> int:
        """Wait for the program's end; return its exit code."""
        return int(self.see(r"\[ended with (\d+)\]", seconds=GONE_SECONDS)[1])
