"""Claims about ``completion``: one command, and real shells complete; what was in their files stays."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from distconsole.__main__ import run
from suite.programs import run_to_end

ASK = {
    "bash": 'COMP_WORDS=(distconsole chec) COMP_CWORD=1; _distconsole_completion distconsole; echo "${COMPREPLY[@]}"; '
    "compopt() { echo $*; }; COMP_WORDS=(distconsole run tr) COMP_CWORD=2; _distconsole_completion distconsole",
    "zsh": "echo $_comps[distconsole]; _DISTCONSOLE_COMPLETE=zsh_complete COMP_WORDS='distconsole run tr' COMP_CWORD=2 distconsole",
    "fish": "for line in 'chec' 'check --only ssh,ne' 'run tr'; complete -C \"distconsole $line\"; end",
}
"""By shell, lines whose answers show that it completes ours: verbs, lists and scripts."""
ANSWERS = {
    "bash": ("check", "-o default"),
    "zsh": ("_distconsole_completion", "file\ntr"),
    "fish": ("Check the hosts: faults, evidence and cures.", "ssh,net", "train.py"),
}


@pytest.mark.parametrize("shell", ASK)
def test_a_new_shell_completes_after_one_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    start = home / f".{shell}rc"
    start.write_text("ours=kept")  # without an end of line
    for _ in range(2):
        assert run(["completion"]) == 0
    assert f"a new {shell} completes" in capsys.readouterr().out
    assert start.read_text().startswith("ours=kept")
    assert start.read_text().count(f"completion.{shell}") == (0 if shell == "fish" else 2)
    (home / "train.py").touch()
    monkeypatch.chdir(home)
    words = [shell, "-ic", ASK[shell]]
    asked = run_to_end(words)
    assert all(answer in asked.stdout for answer in ANSWERS[shell]), asked
    assert run(["doctor"]) == 0
    assert f"completion   installed for {shell}\n" in capsys.readouterr().out


def test_the_line_that_earlier_versions_told_is_enough(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = 'eval "$(_DISTCONSOLE_COMPLETE=bash_source distconsole)"\n'
    (home / ".bashrc").write_text(line)
    assert run(["completion", "bash"]) == 0
    assert "already installed" in capsys.readouterr().out
    assert (home / ".bashrc").read_text() == line


def test_a_shell_that_cannot_complete_and_a_file_that_cannot_be_written_are_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run(["completion"]) == 2
    assert "SHELL is /bin/tcsh; completion is for bash, zsh, fish" in capsys.readouterr().err
    (home / ".bashrc").mkdir()
    assert run(["completion", "bash"]) == 1
    said = capsys.readouterr().err
    assert ".bashrc: Is a directory" in said
    assert "completion bash --show" in said
