"""What completion offers is what a command would find: in a shell and at the prompt."""

from pathlib import Path

import pytest

from distconsole.config.load import trust_as_it_is
from distconsole.grammar.completion import shell_vocabulary
from distconsole.tui.prompt.completion_index import CompletionIndex


@pytest.fixture(autouse=True)
def project(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(cwd))
    (cwd / ".ssh").mkdir()
    (cwd / ".ssh" / "config").write_text("Host own\n")
    for name in ("given", "exported", "configured"):
        (cwd / name).write_text(f"Host {name}\n")


def at_prompt(ssh_config: str | None = None) -> set[str]:
    known = CompletionIndex(ssh_config)
    known.names()
    known.end()
    return set(known.names().hosts)


def test_hosts_are_those_of_the_ssh_configuration_that_a_command_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(shell_vocabulary().hosts) == at_prompt() == {"own"}
    config = '[clusters.a]\nhosts = ["n[1-2]:8"]\n'
    own = tmp_path / "distconsole.toml"
    own.write_text(f'ssh_config = "configured"\n{config}')
    assert set(shell_vocabulary().hosts) == at_prompt() == {"n1", "n2", "own"}  # not trusted yet
    trust_as_it_is(own)
    assert set(shell_vocabulary().hosts) == at_prompt() == {"n1", "n2", "configured"}
    monkeypatch.setenv("DISTCONSOLE_SSH_CONFIG", "~/exported")
    assert set(shell_vocabulary().hosts) == at_prompt() == {"n1", "n2", "exported"}
    assert at_prompt("~/given") == {"n1", "n2", "given"}
