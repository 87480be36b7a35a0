"""How our failed logins are added up as sshd adds them up, and what its words before its version mean."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.errors import ConnectError, LinkLostError
from distconsole.ssh import penalties
from distconsole.ssh.openssh_login import first_words
from distconsole.ssh.penalties import NOT_ALLOWED, TOO_MANY, FailedLogins
from distconsole.ssh.ssh_config import SshOptions

OLD, NEW = "SSH-2.0-OpenSSH_9.7p1 Debian-7", "SSH-2.0-OpenSSH_9.8p1"
OPTIONS = SshOptions(
    alias="gpu1",
    hostname="gpu1",
    user="root",
    port=22,
    identity_files=(),
    identities_given=False,
    certificate_files=(),
    identities_only=False,
    identity_agent=None,
    proxy_jump=(),
    proxy_command=None,
    user_known_hosts=(),
    global_known_hosts=(),
    host_key_name=None,
    connect_seconds=10,
    address_family=0,
    bind_address=None,
)


class Waiting(threading.Event):
    """Notes how long it is waited for, and lets the clock go on."""

    def __init__(self, clock: "Clock") -> None:
        super().__init__()
        self.clock, self.seconds = clock, 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds += timeout
        self.clock.now += timeout
        return self.is_set()


class Clock:
    def __init__(self) -> None:
        self.now = time.time()  # files have their times from the kernel

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Clock()
    monkeypatch.setattr(penalties, "time", made)
    return made


def held(clock: Clock, failed: FailedLogins) -> float:
    waiting = Waiting(clock)
    failed.hold(waiting)
    return waiting.seconds


def test_logins_that_fail_again_wait_until_the_next_has_no_penalty(clock: Clock) -> None:
    waited, ends = [], 0.0
    for _ in range(8):
        failed = FailedLogins(OPTIONS, ())  # each time another process
        waited.append(held(clock, failed))
        ends = max(ends, clock.now) + 5.0  # as srclimit.c of OpenSSH adds
        assert ends - clock.now <= 15.0, "sshd would drop connections"
        failed.note(NEW, "no key", tried=True)
    assert waited == pytest.approx([0, 0, 3, 5, 5, 5, 5, 5])


def test_a_login_after_those_of_another_way_or_of_long_ago_waits_for_nothing(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    failed.note(NEW, "no key", tried=True)
    failed.note(NEW, "no key", tried=True)
    for other in (
        FailedLogins(OPTIONS, ("hop",)),
        FailedLogins(replace(OPTIONS, port=2222), ()),
        FailedLogins(replace(OPTIONS, proxy_command="nc"), ()),
    ):
        assert held(clock, other) == 0
    clock.now += 20
    assert held(clock, failed) == 0


@pytest.mark.parametrize("version", [OLD, "SSH-2.0-dropbear_2024.85", "", "SSH-2.0-Go"])
def test_a_server_that_adds_nothing_up_is_waited_for_by_nobody(clock: Clock, version: str) -> None:
    failed = FailedLogins(OPTIONS, ())
    for _ in range(20):
        failed.note(version, "no key", tried=True)
        assert held(clock, failed) == 0


def test_while_there_is_a_penalty_it_is_asked_at_once(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    for _ in range(4):
        failed.note("OpenSSH_for_Windows_10.0", "no key", tried=True)
    assert held(clock, failed) == 0


def test_a_transport_that_is_closed_meanwhile_ends_the_waiting(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    failed.note(NEW, "no key", tried=True)
    failed.note(NEW, "no key", tried=True)
    waiting = Waiting(clock)
    waiting.set()
    with pytest.raises(LinkLostError):
        failed.hold(waiting)


def refusal(failed: FailedLogins, said: str) -> ConnectError:
    found = failed.refusal(said)
    assert found is not None
    return found


def test_our_failed_login_is_named_with_its_age_and_the_seconds_left(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    for said in ("a", "b", "c", "d", "gpu1 accepts none of our keys"):
        failed.note(NEW, said, tried=True)
    clock.now += 4
    error = refusal(FailedLogins(OPTIONS, ()), f"{NOT_ALLOWED}\r\n")
    assert "PerSourcePenalties" in error.message
    assert "our last login there failed 4 s ago: gpu1 accepts none of our keys" in error.message
    assert error.hint.startswith("worth another try in 21 s, with that login corrected")


def test_where_no_login_of_ours_failed_none_is_named(clock: Clock) -> None:
    error = refusal(FailedLogins(OPTIONS, ("hop1", "hop2")), NOT_ALLOWED)
    assert error.message.startswith("gpu1 port 22 drops connections from hop2 at this time")
    assert "our last login" not in error.message
    assert error.hint.startswith("worth another try in 15 s: by default")


def test_a_login_of_ten_minutes_ago_is_not_named(clock: Clock) -> None:
    FailedLogins(OPTIONS, ()).note(NEW, "no key", tried=True)
    clock.now += 601
    assert "our last login" not in refusal(FailedLogins(OPTIONS, ()), NOT_ALLOWED).message


def test_a_penalty_grows_to_ten_minutes_at_most(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    for _ in range(200):
        failed.note(NEW, "no key", tried=True)
    assert refusal(failed, NOT_ALLOWED).hint.startswith("worth another try in 600 s")


def test_what_is_no_refusal_is_none(clock: Clock) -> None:
    failed = FailedLogins(OPTIONS, ())
    assert failed.refusal("HTTP/1.1 400") is None
    assert failed.refusal("") is None
    assert "MaxStartups" in refusal(failed, f"{TOO_MANY}\r\n").hint


def test_what_is_kept_is_private_bounded_and_forgotten(clock: Clock, tmp_path: Path) -> None:
    failed = FailedLogins(OPTIONS, ())

    def fail() -> Path:
        failed.note(NEW, "x" * 5000, tried=True)
        (file,) = tmp_path.rglob("failed-logins/*")
        os.utime(file, (clock.now, clock.now))
        return file

    for _ in range(300):
        file = fail()
        clock.now += 5
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_size < 256 * 1024
    assert held(clock, failed) == 0
    fail()
    fail()
    assert held(clock, failed) == pytest.approx(3)
    clock.now += 3600 * 24 * 365
    FailedLogins(replace(OPTIONS, port=2222), ()).note(NEW, "no key", tried=True)
    assert not file.exists()


def test_a_damaged_or_unwritable_file_spoils_nothing(clock: Clock, tmp_path: Path) -> None:
    failed = FailedLogins(OPTIONS, ())
    failed.note(NEW, "no key", tried=True)
    (file,) = tmp_path.rglob("failed-logins/*")
    file.write_text('nonsense\n[1]\n["a", 2, 3]\n' + file.read_text() + "[1, 5")
    assert "no key" in refusal(failed, NOT_ALLOWED).message
    file.unlink()
    file.mkdir()
    failed.note(NEW, "no key", tried=True)
    assert held(clock, failed) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "debug1: kex_exchange_identification: banner line 0: Not allowed at this time",
            NOT_ALLOWED,
        ),
        ("debug1: ssh_exchange_identification: Exceeded MaxStartups", TOO_MANY),
        (
            "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.8",
            "OpenSSH_9.8",
        ),
        ("kex_exchange_identification: Connection closed by remote host", ""),
    ],
)
def test_the_first_that_a_server_said_is_found_in_what_ssh_writes(line: str, words: str) -> None:
    assert first_words(f"OpenSSH_10.0p2\r\n{line}\r\ndebug1: more\r\n") == words
