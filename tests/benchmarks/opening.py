"""How long the program takes to begin: ``--help``, and the first screen of the console.

By the clock from the start of the process: ``--help`` to its end, against Python that does nothing and
against argparse with one option; the console in a pseudo-terminal of 120 x 36 until its prompt stands
there, against a bare Textual program with a table and a prompt. They alternate; it judges nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.glass import Watched
from benchmarks.measure import Compared, compare

LINES = (
    Compared("distconsole --help", "help", "argparse", "argparse", seconds=0.12),
    Compared(
        "first screen of the console", "screen", "textual", "a bare Textual program", seconds=0.5
    ),
    Compared("python -c pass", "python"),
)
INVITATION = "a verb, such as"

ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--option")
parser.parse_args(["--help"])
"""
TEXTUAL = """\
from textual.app import App
from textual.widgets import DataTable, Input

class Bare(App):
    def compose(self):
        yield DataTable()
        yield Input(placeholder="a verb, such as")

Bare().run()
"""


def ended(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the seconds that a program takes to its end."""
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, env=env, check=True)
    return time.perf_counter() - began


def shown(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the seconds until a program's screen has the invitation of its prompt."""
    began = time.perf_counter()
    with Watched(argv, env) as program:
        return program.look_until(lambda text: INVITATION in text, "the prompt") - began


def measure(rounds: int = 15) -> dict[str, Any]:
    program = shutil.which("distconsole", path=str(Path(sys.executable).parent))
    if program is None:
        raise FileNotFoundError(f"distconsole is not installed beside {sys.executable}")
    with tempfile.TemporaryDirectory() as home:
        # Compiled modules are kept, as they are for everybody.
        kept = {name: value for name, value in os.environ.items() if "DONTWRITE" not in name}
        env = {**kept, "HOME": home}
        python = sys.executable
        ways = {
            "python": partial(ended, (python, "-c", "pass"), env),
            "argparse": partial(ended, (python, "-c", ARGPARSE), env),
            "help": partial(ended, (program, "--help"), env),
            "textual": partial(shown, (python, "-c", TEXTUAL), env),
            "screen": partial(shown, (program,), env),
        }
        return compare(ways, rounds, LINES, warmed=lambda: None)


rows = rows_of_turns
