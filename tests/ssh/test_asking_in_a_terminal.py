"""What a person at a real terminal sees of a login's question, also where a shell or a signal comes between."""

import sys
from pathlib import Path

import pytest

from suite.terminal import Terminal, Terminals

pytestmark = pytest.mark.tmux

ASK = """
import sys, time
from distconsole.ssh.asking import LoginQuestion, Person, TerminalAsker

person = Person(TerminalAsker())
until = time.monotonic() + float(sys.argv[1])
answer = person.ask(LoginQuestion("gpu1", sys.argv[2]), lambda: time.monotonic() < until)
print("got", answer)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A shell with jobs, in which ``ask SECONDS QUESTION`` asks."""
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "rc").write_text(
        f"PS1='$ '\nask() {{ {sys.executable} {tmp_path}/ask.py \"$@\"; }}\n"
    )
    with Terminals(tmp_path) as terminals:
        opened = terminals.open("shell", ["bash", "--rcfile", str(tmp_path / "rc"), "-i"])
        opened.see(r"(?m)^\$")
        yield opened


def type_line(terminal: Terminal, line: str) -> None:
    terminal.press(line, "Enter")


def test_what_is_typed_after_a_stop_is_not_shown_either(terminal: Terminal) -> None:
    type_line(terminal, "clear; ask 60 Password:")
    terminal.see("gpu1: Password:")
    terminal.press("C-z")
    terminal.see("Stopped")
    type_line(terminal, "clear; fg")
    terminal.see(r"(?s)ask.py.*gpu1: Password:")
    terminal.press("secret")
    terminal.press("Enter")
    terminal.see("got secret")
    assert terminal.text.count("secret") == 1


def test_a_question_that_is_taken_back_leaves_no_line(terminal: Terminal) -> None:
    type_line(terminal, "clear; ask 1 Password:")
    terminal.see("got None")
    assert "Password:" not in terminal.text.replace("ask 1 Password:", "")


def test_the_terminal_is_as_it_was_after_a_ctrl_c(terminal: Terminal) -> None:
    type_line(terminal, "clear; ask 60 Password:")
    terminal.see("gpu1: Password:")
    terminal.press("C-c")
    terminal.see("KeyboardInterrupt")
    type_line(terminal, "stty -a | grep -wo -e echo -e -echo")
    terminal.see("(?m)^echo")


def test_what_a_server_words_is_no_escape(terminal: Terminal) -> None:
    type_line(terminal, "clear; ask 60 $'\\e]0;t\\a\\e[2J\\e[31mgpu12\\nPassword:'")
    terminal.see("gpu1: gpu12 Password:")
    terminal.press("C-c")
