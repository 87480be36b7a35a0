"""``init`` on real OpenSSH servers, by a person who answers its questions."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distconsole.config.load import load_config
from distconsole.errors import UnreachableError
from distconsole.model.events import CheckProgress, Event, HostStatus, Narration
from distconsole.model.requests import Init, Where
from distconsole.operations import Control, perform
from fakes.sessions import no_session
from fakes.sshd import SshServer


class Person:
    """Answers by a question's first word, in turns, and then by Enter; keeps what was asked."""

    def __init__(self, **answers: list[str]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self.control = Control()
        self.control.ask = self._answer
        self.control.confirm = lambda question: self._answer(question) == "yes"

    def _answer(self, question: str) -> str:
        self.asked.append(question)
        answers = self._answers.get(question.split()[0])
        return answers.pop(0) if answers else ""


@pytest.fixture
def new_user(
    make_server: Callable[..., SshServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder for the project, and an ssh_config that names two hosts whose keys nobody knows yet."""
    text = ""
    for name in ("gpu1", "gpu2"):
        server = make_server()
        known = f"UserKnownHostsFile {server.known_hosts}"
        text += (
            Path(server.write_config(name=name))
            .read_text()
            .replace(known, f"UserKnownHostsFile {tmp_path}/known")
        )
    (tmp_path / "ssh_config").write_text(text)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("DISTCONSOLE_SSH_CONFIG", str(tmp_path / "ssh_config"))
    return project


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter of the nodes without torch."""
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


def until_checked(events: Iterator[Event]) -> list[Event]:
    """Take events until the check at the end has begun."""
    taken = []
    for event in events:
        taken.append(event)
        if isinstance(event, CheckProgress):
            break
    events.close()  # type: ignore[attr-defined]
    return taken


def test_a_new_user_of_two_unknown_hosts_gets_a_file(new_user: Path, python: str) -> None:
    person = Person(Trust=["yes"], Which=["1", "/no/python"])
    request = Init(where=Where(python=python), cluster="lab")
    events = until_checked(perform(request, no_session, person.control))
    told = "\n".join(event.text for event in events if isinstance(event, Narration))
    known = (new_user.parent / "known").read_text().splitlines()
    assert len(known) == 2
    for line in known:
        name, _, key = line.split()
        assert f"  {name}  ssh-ed25519  SHA256:" in told
        assert key not in told
    config = load_config()
    cluster = config.clusters["lab"]
    assert cluster.hosts == ("gpu1", "gpu2")
    assert config.settings("gpu1", cluster).python == python
    assert isinstance(events[-1], CheckProgress)
    assert "/no/python is no Python 3.9 or newer there" in told
    asked = [question.split()[0] for question in person.asked]
    assert asked == ["Which", "Trust", "Which", "Which", "Write"]


def test_a_key_that_is_refused_leaves_nothing(new_user: Path) -> None:
    person = Person(Trust=["no"])
    events: list[Event] = []
    with pytest.raises(UnreachableError, match="gpu1, gpu2 cannot be used; nothing was written"):
        events.extend(perform(Init(), no_session, person.control))
    hints = [event.hint for event in events if isinstance(event, HostStatus)]
    assert all(hint.startswith("compare that fingerprint") for hint in hints)
    assert len(hints) == 2
    assert not (new_user.parent / "known").exists()
    assert list(new_user.iterdir()) == []
