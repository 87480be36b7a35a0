"""A Slurm job in which nothing was started is given back, or it is said that it could not be; its host is faked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from distconsole.errors import ConsoleError, LinkLostError
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, Narration
from distconsole.model.names import HostName
from distconsole.model.run_events import RunEnded
from distconsole.operations.control import Control
from distconsole.operations.launch import launching
from distconsole.operations.sessions import SessionSource
from distconsole.runs.store.store import RunStore
from distconsole.session import Session

PENDING = "JobId=7 JobName=x JobState=PENDING Reason=Resources Restarts=0"
RUN = ask.Run("train.py", slurm="-N 2", slurm_login="login")


class Login:
    """A host that submits job 7; of ``lost`` requests it answers none, until it is connected again."""

    def __init__(self, *lost: str, comes_back: bool = False) -> None:
        self.host = Host(HostName("login"))
        self.cluster = Cluster((self.host,))
        self.cancelled: list[str] = []
        self._lost = set(lost)
        self._comes_back = comes_back

    def link(self, _name: str) -> "Login":
        return self

    def connect(self) -> None:
        if self._comes_back:
            self._lost.clear()

    def request(self, _op: str, _timeout: float, **asked: Any) -> dict[str, Any]:
        do = asked["do"]
        if do in self._lost:
            raise LinkLostError("the connection to login ended")
        if do == "cancel":
            self.cancelled.append(asked["job"])
        return {"job": "7", "text": PENDING}


def submitted(login: Login, control: Control) -> Iterator[Event]:
    @contextmanager
    def sessions(_where: ask.Where) -> Iterator[Session]:
        yield cast("Session", login)

    no_store = cast("RunStore", None)  # nothing is to be started
    return launching.run(RUN, cast("SessionSource", sessions), control, no_store)


def test_a_job_that_nobody_waits_for_is_cancelled() -> None:
    login, control = Login(), Control()
    control.stop()
    events = list(submitted(login, control))
    assert isinstance(events[-1], RunEnded)
    assert login.cancelled == ["7"]


def test_that_a_job_could_not_be_cancelled_is_said() -> None:
    control = Control()
    control.stop()
    *_, said = submitted(Login("cancel"), control)
    assert isinstance(said, Narration)
    assert "job 7 could not be cancelled (login: the connection to login ended)" in said.text
    assert said.text.endswith("scancel 7 on login")


def test_a_lost_connection_says_what_becomes_of_the_job() -> None:
    with pytest.raises(ConsoleError, match="connection to login ended") as caught:
        list(submitted(Login("show", "cancel"), Control()))
    assert "scancel 7 on login" in caught.value.hint


def test_a_job_is_cancelled_over_a_new_connection() -> None:
    login = Login("show", comes_back=True)
    with pytest.raises(ConsoleError) as caught:
        list(submitted(login, Control()))
    assert login.cancelled == ["7"]
    assert "scancel" not in caught.value.hint
