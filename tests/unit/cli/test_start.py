"""What only tells how the program is used loads nothing that does anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("textual", "rich", "paramiko", "asyncio", "msgspec", "difflib", "distconsole.operations")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_no_part_that_does_work(words: list[str]) -> None:
    program = (
        "import sys; from distconsole.__main__ import run; "
        f"code = run({words!r}); "
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
    assert "distconsole" in done.stdout


def test_a_launch_starts_without_the_judges_of_a_check() -> None:
    judges = ("distconsole.checks.rules", "distconsole.checks.engine.run")
    program = (
        "import sys, distconsole.cli.main, distconsole.operations.launch.launching; "
        f"print([name for name in {judges!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_a_verb_without_the_screen_starts_without_what_only_a_webhook_needs() -> None:
    program = (
        "import sys, distconsole.cli.main; "
        "print([name for name in ('ssl', 'http.client', 'email') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
