"""Every command of the README does what the README shows, on hosts with the README's names."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.config.load import load_config
from suite.forked_console import forked_console
from suite.pages import CUT, INTERRUPTED, README, REPOSITORY, blocks, inline_code, shown_commands
from suite.programs import run_to_end
from testbed import Testbed

TEXT = README.read_text()
SHOWN = shown_commands(TEXT)
ON_HOSTS = "On your own machines"

RUN_ID = re.compile(r"\btrain-\d{4}-[0-9a-f]{6}\b")


def words_of(command: str) -> list[str]:
    """Return a command's words, without its comment."""
    return shlex.split(command, comments=True)


def our_words() -> list[list[str]]:
    """Return what stands behind ``distconsole`` in every command of the page."""
    commands = [shown.command for shown in SHOWN] + inline_code(TEXT)
    return [words[1:] for words in map(words_of, commands) if words[:1] == ["distconsole"]]


def shape(line: str) -> str:
    """Return what of a line is the same on each day."""
    line = re.sub(r"<? *\d[\d.,]*", " #", RUN_ID.sub("RUN", line))
    return " ".join(re.sub(r", # (warn|info)", "", line).split())


def marks(words: list[str]) -> list[pytest.MarkDecorator]:
    """Return what a launch needs."""
    needs = {"train_hvd.py": pytest.mark.horovod, "mpi": pytest.mark.mpi}
    return [mark for word, mark in needs.items() if word in words]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Testbed]:
    with Testbed(2, prefix="gpu") as bed:
        yield bed


TRAIN = """
import os, sys, time
from distconsole_training import report

if not os.environ.get("RANK"):
    import torch.distributed  # by which the launcher is chosen
for epoch in range(int(sys.argv[2])):
    report(loss=1.0, step=epoch)
    time.sleep(0.2 if epoch else 5.0)  # by then all are known to train
    if os.environ["RANK"] == "0":
        print(f"epoch {epoch + 1}: 261 of 360 right after 1.4 s", flush=True)
if os.environ["RANK"] == "0":
    print("test accuracy 94.44 % (340 of 360)")
"""
"""Says what the recipe says, without the seconds in which each rank imports torch; the demo runs the recipe."""


@pytest.fixture
def project(cwd: Path) -> Path:
    """A project with the README's two scripts, in which the operator stands."""
    (cwd / "train.py").write_text(TRAIN)
    (cwd / "train_hvd.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    return cwd


def type_command(
    command: str, bed: Testbed, until: str | None = None, before: str = "exec "
) -> tuple[int, list[str]]:
    """Type a command as the README has it; Ctrl-C once a line such as ``until`` was printed."""
    process = subprocess.Popen(
        ["bash", "-c", before + command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "DISTCONSOLE_SSH_CONFIG": str(bed.ssh_config)},
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.append(line.rstrip())
                if until is not None and shape(line) == shape(until):
                    process.send_signal(signal.SIGINT)
                    until = None
        return process.wait(60), lines
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", [s.command for s in SHOWN if s.command.startswith("pip ")])
def test_an_installation_finds_a_package(command: str) -> None:
    offline = ["--dry-run", "--no-index", "--no-deps", "--no-build-isolation"]
    told = run_to_end(["python", "-m", *words_of(command), *offline], cwd=REPOSITORY, check=True)
    assert "Would install distconsole" in told.stdout


def test_the_configuration_has_six_lines_and_is_taken(project: Path) -> None:
    (block,) = blocks(TEXT, "toml")
    assert len(block.splitlines()) <= 6
    (project / "distconsole.toml").write_text(block)
    config = load_config()
    assert config.cluster in config.clusters
    assert config.verbs["run"] == {"nproc": "gpu", "sync": True}


@pytest.mark.testbed
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=marks(words), id=" ".join(words))
        for words in our_words()
        if words[:1] == ["run"] and words != ["run", "train.py"]
    ],
)
def test_a_launch_can_be_planned(
    hosts: Testbed, project: Path, words: list[str], consoles: Path
) -> None:
    command = shlex.join(["distconsole", "run", "--dry-run", *words[1:]])
    command = command.replace("--dry-run --dry-run", "--dry-run")
    code, lines = type_command(command, hosts, before=forked_console(consoles))
    assert code == 0, lines
    assert any(line.startswith("# ") and " ranks by " in line for line in lines), lines


@pytest.mark.testbed
@pytest.mark.torch_ranks
@pytest.mark.timeout(480)
def test_the_four_commands_print_what_the_page_shows(hosts: Testbed, project: Path) -> None:
    for shown in SHOWN:
        if shown.section != ON_HOSTS:
            continue
        expected = [line for line in shown.output if line not in (CUT, INTERRUPTED)]
        until = None
        if INTERRUPTED in shown.output:
            until = shown.output[shown.output.index(INTERRUPTED) - 1]
        code, lines = type_command(shown.command, hosts, until)
        assert code == 0, (shown.command, lines)
        told = [shape(line) for line in lines]
        assert [line for line in expected if shape(line) not in told] == [], lines
    for words in our_words():
        if words[:1] and words[0] in ("logs", "report"):
            code, lines = type_command(shlex.join(["distconsole", *words]), hosts)
            assert code == 0, (words, lines)
