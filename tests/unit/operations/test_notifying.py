"""Commands and webhooks of a person's own: told in bounded time, without a secret said, and never in a run's way."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from distconsole.config.load import load_config
from distconsole.config.notify import NotifySettings, notify_settings
from distconsole.errors import ConfigError, UsageError
from distconsole.model import requests as ask
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.operations.notifying import (
    TRIES,
    Notifier,
    NotToldError,
    deliver,
    post,
    run_command,
    trial,
    ways_for,
)
from fakes import scenes

SECRET = "T00000/B00000/XXXXXXXX"
NOTICE = Notice(
    kind=NoticeKind.FAILURE, title="digits failed", text="rank 2: $(id) `id`", t=5.0, run="digits-1",
    state="failed", exit_code=7,
)  # fmt: skip
HERE = frozenset(Way)


class Webhook(HTTPServer):
    """Answers with ``codes`` in turn, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.codes = [200]
        self.bodies: list[dict[str, Any]] = []
        self.address = f"http://127.0.0.1:{self.server_port}/{SECRET}"


class _Answer(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_command_gets_the_notice_and_no_shell_reads_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    text = (
        "import json, os, sys; given = json.load(sys.stdin); "
        f"open({str(told)!r}, 'w').write(json.dumps([sys.argv[1:], given, "
        "os.environ['DISTCONSOLE_NOTICE'], os.environ['DISTCONSOLE_TEXT']]))"
    )
    run_command([*python(text), "$HOME; id"], NOTICE, 30)
    assert json.loads(told.read_text()) == [
        ["$HOME; id"], NOTICE.fields, "failure", "rank 2: $(id) `id`",
    ]  # fmt: skip
    assert NOTICE.fields["exit_code"] == 7


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such/program"], "cannot be started: No such file or directory"),
        (python("import sys; sys.exit('no\\x1b[31m way')"), "ended with 1: 'no way'"),
        (python("import time; time.sleep(60)"), "took longer than 0.2 s and was ended"),
        (["sh", "-c", "sleep 60 & wait"], "took longer than 0.2 s and was ended"),
    ],
)
def test_a_command_that_fails_or_hangs_is_ended_and_said(command: list[str], why: str) -> None:
    with pytest.raises(NotToldError, match=f"^{why}$"):
        run_command(command, NOTICE, 0.2 if "longer" in why else 30)


def test_a_webhook_gets_json_with_the_text_that_slack_wants(webhook: Webhook) -> None:
    webhook.codes = [503, 200]
    post(webhook.address, NOTICE, 30, sleep=lambda _: None)
    assert len(webhook.bodies) == 2
    assert webhook.bodies[1]["text"] == "digits failed: rank 2: $(id) `id`"
    assert webhook.bodies[1]["exit_code"] == 7


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (500, TRIES), (429, TRIES)])
def test_a_webhook_that_refuses_is_said_without_its_address(
    code: int, tries: int, webhook: Webhook
) -> None:
    webhook.codes = [code]
    with pytest.raises(NotToldError, match=f"^answered {code}") as raised:
        post(webhook.address, NOTICE, 30, sleep=lambda _: None)
    assert len(webhook.bodies) == tries
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "address", [f"http://127.0.0.1:1/{SECRET}", f"https://no.such.host.invalid/{SECRET}"]
)
def test_a_webhook_out_of_reach_is_said_without_its_address(address: str) -> None:
    with pytest.raises(NotToldError, match="cannot be reached: ") as raised:
        post(address, NOTICE, 30, sleep=lambda _: None)
    assert SECRET not in str(raised.value)
    assert "invalid" not in str(raised.value)


def test_tries_of_a_webhook_end_within_its_time(webhook: Webhook) -> None:
    webhook.codes = [500]
    times = iter([0.0, 0.0, 9.9])
    with pytest.raises(NotToldError):
        post(webhook.address, NOTICE, 10, sleep=lambda _: None, monotonic=lambda: next(times))
    assert len(webhook.bodies) == 1


def test_a_failure_is_said_once_and_nothing_waits_for_it(webhook: Webhook) -> None:
    webhook.codes = [404]
    rung: list[frozenset[Way]] = []
    said: list[str] = []
    settings = NotifySettings(
        kinds=frozenset(NoticeKind), command=("/no/such/program",), webhook=webhook.address
    )
    notifier = Notifier(settings, HERE, lambda _, ways: rung.append(ways), said.append)
    for _ in range(2):
        for event in scenes.failing():
            notifier.see(event)
    notifier.close(30)
    assert rung == [LOCAL_WAYS, LOCAL_WAYS]
    assert said == [
        "notify: the command cannot be started: No such file or directory",
        "notify: the webhook answered 404",
    ]
    assert len(webhook.bodies) == 2
    assert deliver(settings, LOCAL_WAYS, trial(0.0)) == []


ALL_SET = NotifySettings(command=("x",), webhook="https://x/")


@pytest.mark.parametrize(
    ("request_", "settings", "on_screen", "ways"),
    [
        (ask.Run("x.py"), ALL_SET, True, HERE),
        (ask.Run("x.py"), ALL_SET, False, HERE - LOCAL_WAYS),
        (ask.Run("x.py"), NotifySettings(bell=True), False, {Way.BELL}),
        (ask.Run("x.py"), NotifySettings(bell=False, desktop="off"), True, set()),
        (ask.Run("x.py", detach=True), ALL_SET, True, set()),
        (ask.Run("x.py", notify="none"), ALL_SET, True, set()),
        (ask.Run("x.py", notify="bell,webhook"), ALL_SET, False, {Way.BELL, Way.WEBHOOK}),
        (ask.Rerun("x", notify="all"), NotifySettings(), False, LOCAL_WAYS),
        (ask.Attach("x"), ALL_SET, True, LOCAL_WAYS),
        (ask.Attach("x", notify="command"), ALL_SET, True, {Way.COMMAND}),
        (ask.Replay("x"), ALL_SET, True, set()),
    ],
)
def test_only_who_started_a_run_or_was_asked_tells_others_of_it(
    request_: ask.Request, settings: NotifySettings, on_screen: bool, ways: set[Way]
) -> None:
    assert ways_for(request_, settings, on_screen=on_screen) == ways


def test_a_way_that_is_not_configured_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="--notify webhook: none is configured"):
        ways_for(ask.Run("x.py", notify="bell,webhook"), NotifySettings(), on_screen=True)


def own_file(home: Path, text: str) -> Path:
    path = home / ".config" / "distconsole" / "distconsole.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[notify]\n{text}\n")
    return path


def test_the_configuration_says_who_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"https://hooks.example/{SECRET}")
    own_file(home, 'on = "finding"\ncommand = "notify-send \'a b\'"\nwebhook_env = "HOOK"')
    config = load_config(home)
    settings = notify_settings(config.notify)
    assert settings.kinds == {NoticeKind.FINDING}
    assert settings.command == ("notify-send", "a b")
    assert settings.webhook.endswith(SECRET)
    assert SECRET not in repr(settings) + repr(config)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('webhook = "http://hooks.example/SECRET"', "'webhook' must be an https:// address"),
        ('webhook = "https:///SECRET"', "'webhook' must be an https:// address"),
        ('webhook = ["SECRET"]', "'webhook' must be a text, not what it is"),
        ('on = ["end"]', "'on' has 'end', which is none of finish, failure, stall, finding"),
        ('command = ["a"]\nshell = "b"', "'command' and 'shell' are two ways to say the same"),
        ('command = "a \'b"', "'command' cannot be split into words"),
        ('desktop = "osc8"', "'desktop' must be one of auto, osc9, osc777, both, off"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_a_secret(
    text: str, wrong: str, home: Path
) -> None:
    path = own_file(home, text)
    with pytest.raises(ConfigError) as raised:
        load_config(home)
    assert raised.value.message.startswith(str(path))
    assert wrong in raised.value.message
    assert "SECRET" not in raised.value.message


def test_a_project_cannot_have_programs_started_here(tmp_path: Path) -> None:
    (tmp_path / "distconsole.toml").write_text('[notify]\nbell = false\ncommand = ["x"]\n')
    with pytest.raises(ConfigError, match=r"'command' of \[notify\] is not read from a project's"):
        load_config(tmp_path)
