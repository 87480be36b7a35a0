"""What is piped into ``run``: refused, said, or of no interest.
What only tells how the program is used loads nothing that does anything.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.cli.main import look_at_input
from distconsole.errors import UsageError
from distconsole.model import requests as ask
from suite.programs import run_to_end

READS = [
    "import sys\nfor line in sys.stdin: pass",
    "import sys, json\njson.load(sys.stdin)",
    "import sys\nsys.stdin.buffer.read()",
    "from sys import stdin\nstdin.read()",
    "answer = input()",
    "import fileinput\nfor line in fileinput.input(): pass",
]
LEAVES = "import sys\nif sys.stdin.isatty(): print('by hand')"


def told(script: str, descriptor: int, *arguments: str, folder: Path) -> list[str]:
    (folder / "job.py").write_text(script)
    said: list[str] = []
    look_at_input(ask.Run(str(folder / "job.py"), arguments), said.append, descriptor)
    return said


@contextmanager
def pipe(data: bytes = b"", *, ended: bool = False) -> Iterator[int]:
    reader, writer = os.pipe()
    os.write(writer, data)
    if ended:
        os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)
        if not ended:
            os.close(writer)


@pytest.mark.parametrize("script", READS)
def test_data_for_a_script_that_reads_it_is_refused(script: str, tmp_path: Path) -> None:
    with pipe(b"data") as stdin, pytest.raises(UsageError, match="does not reach the ranks"):
        told(script, stdin, folder=tmp_path)
    (tmp_path / "data").write_text("data")
    with (tmp_path / "data").open() as file, pytest.raises(UsageError):
        told(script, file.fileno(), folder=tmp_path)


@pytest.mark.parametrize("argument", ["-", "/dev/stdin"])
def test_data_that_an_argument_names_is_refused(argument: str, tmp_path: Path) -> None:
    with pipe(b"data") as stdin, pytest.raises(UsageError):
        told("print(1)", stdin, "--data", argument, folder=tmp_path)


def test_data_that_nobody_is_seen_to_read_is_said_not_to_arrive(tmp_path: Path) -> None:
    words = ["standard input does not reach the ranks"]
    with pipe(b"data") as stdin:
        assert told(LEAVES, stdin, folder=tmp_path) == words
    (tmp_path / "data").write_text("gpu1\ngpu2\n")
    with (tmp_path / "data").open() as file:
        assert told(LEAVES, file.fileno(), folder=tmp_path) == words
    with pipe() as stdin:  # it may come later, and a script reads it
        assert told(READS[0], stdin, folder=tmp_path) == words


def test_what_a_ci_system_gives_is_of_no_interest(tmp_path: Path) -> None:
    with pipe() as stdin:
        assert told(LEAVES, stdin, folder=tmp_path) == []
    for script in (LEAVES, READS[0]):
        with pipe(ended=True) as stdin:
            assert told(script, stdin, folder=tmp_path) == []
        with Path(os.devnull).open() as null:
            assert told(script, null.fileno(), folder=tmp_path) == []
        (tmp_path / "data").write_text("")
        with (tmp_path / "data").open() as file:
            assert told(script, file.fileno(), folder=tmp_path) == []
        one, other = socket.socketpair()
        other.close()
        with one:
            assert told(script, one.fileno(), folder=tmp_path) == []
            closed = one.fileno()
        assert told(script, closed, folder=tmp_path) == []


def test_a_plan_that_is_only_shown_needs_no_input(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(READS[0])
    run, said = ask.Run(str(tmp_path / "job.py")), list[str]()
    with pipe(b"data") as stdin:
        with pytest.raises(UsageError, match="does not reach the ranks"):
            look_at_input(run, said.append, stdin)
        for request in (
            replace(run, dry_run=True),
            replace(run, emit=ask.EmitKind.SBATCH),
            ask.Check(),
        ):
            look_at_input(request, said.append, stdin)
        assert os.read(stdin, 16) == b"data"
    assert said == []


HEAVY = ("textual", "rich", "paramiko", "asyncio", "msgspec", "difflib", "distconsole.operations")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_no_part_that_does_work(words: list[str]) -> None:
    program = (
        "import sys; from distconsole.__main__ import run; "
        f"code = run({words!r}); "
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = run_to_end([sys.executable, "-c", program])
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
    assert "distconsole" in done.stdout


@pytest.mark.parametrize(
    ("loaded", "others"),
    [
        (
            "distconsole.operations.launch.launching",
            ("distconsole.checks.rules", "distconsole.checks.engine.run"),
        ),
        ("sys", ("ssl", "http.client", "email")),
    ],
    ids=["a launch without the judges of a check", "a verb without what a webhook needs"],
)
def test_a_verb_starts_without_what_only_others_need(loaded: str, others: tuple[str, ...]) -> None:
    program = (
        f"import sys, distconsole.cli.main, {loaded}; "
        f"print([name for name in {others!r} if name in sys.modules])"
    )
    done = run_to_end([sys.executable, "-c", program], check=True)
    assert done.stdout == "[]\n"
