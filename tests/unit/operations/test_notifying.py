"""Commands and webhooks of a person's own: told in bounded time, without a secret said, and never in a run's way."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import replace

from distconsole.config.load import load_config
from distconsole.config.notify import OWN_KEYS, NotifySettings, notify_settings
from distconsole.errors import ConfigError, UsageError
from distconsole.model import requests as ask
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.model.run_events import PlanMade
from distconsole.operations.notifying import (
    Notifier,
    deliver,
    node_notice,
    notify,
    run_command,
    tell_services,
    trial,
    ways_for,
)
from distconsole_agent.contract.webhook import TRIES, NotToldError, post
from fakes import scenes
from fakes.webhooks import SECRET, Webhook, serving

NOTICE = Notice(
    kind=NoticeKind.FAILURE, title="digits failed", text="rank 2: $(id) `id`", t=5.0, run="digits-1",
    state="failed", exit_code=7,
)  # fmt: skip
HERE = LOCAL_WAYS | {Way.COMMAND, Way.WEBHOOK}


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with serving() as server:
        yield server


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
    post(webhook.address, NOTICE.fields, 30, sleep=lambda _: None)
    assert len(webhook.bodies) == 2
    assert webhook.bodies[1]["text"] == "digits failed: rank 2: $(id) `id`"
    assert webhook.bodies[1]["exit_code"] == 7


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (500, TRIES), (429, TRIES)])
def test_a_webhook_that_refuses_is_said_without_its_address(
    code: int, tries: int, webhook: Webhook
) -> None:
    webhook.codes = [code]
    with pytest.raises(NotToldError, match=f"^answered {code}") as raised:
        post(webhook.address, NOTICE.fields, 30, sleep=lambda _: None)
    assert len(webhook.bodies) == tries
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "address", [f"http://127.0.0.1:1/{SECRET}", f"https://no.such.host.invalid/{SECRET}"]
)
def test_a_webhook_out_of_reach_is_said_without_its_address(address: str) -> None:
    with pytest.raises(NotToldError, match="cannot be reached: ") as raised:
        post(address, NOTICE.fields, 30, sleep=lambda _: None)
    assert SECRET not in str(raised.value)
    assert "invalid" not in str(raised.value)


def test_tries_of_a_webhook_end_within_its_time(webhook: Webhook) -> None:
    webhook.codes = [500]
    times = iter([0.0, 0.0, 9.9])
    with pytest.raises(NotToldError):
        post(
            webhook.address, NOTICE.fields, 10, sleep=lambda _: None, monotonic=lambda: next(times)
        )
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
    assert list(deliver(settings, LOCAL_WAYS, trial(0.0))) == []
    assert "sent to this terminal, if it is one" in [*notify(ask.Notify(test=True))][1].text


def test_what_failed_is_said_at_once_and_at_the_end_that_something_was_not_sent() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        settings = NotifySettings(command=("/no/such/program",), webhook=webhook)
        notifier = Notifier(settings, HERE, lambda *_: None, said.put)
        notifier.tell(NOTICE)
        assert said.get(timeout=30).startswith("notify: the command cannot be started")
        notifier.close(0)
        assert said.get_nowait() == "notify: not all notices were sent before the end"
    notifier.close(30)
    assert said.empty()


ALL_SET = NotifySettings(command=("x",), webhook="https://x/")
NODE = NotifySettings(webhook="https://x/", node=True)


@pytest.mark.parametrize(
    ("request_", "settings", "on_screen", "ways"),
    [
        (ask.Run("x.py"), ALL_SET, True, HERE),
        (ask.Run("x.py"), ALL_SET, False, HERE - LOCAL_WAYS),
        (ask.Run("x.py"), NotifySettings(bell=True), False, {Way.BELL}),
        (ask.Run("x.py"), NotifySettings(bell=False, desktop="off"), True, set()),
        (ask.Run("x.py", detach=True), ALL_SET, True, set()),
        (ask.Run("x.py"), NODE, True, LOCAL_WAYS),
        (ask.Run("x.py", notify="node,bell"), ALL_SET, True, {Way.BELL}),
        (ask.Run("x.py", notify="webhook"), NODE, True, {Way.WEBHOOK}),
        (ask.Attach("x", notify="all"), NODE, True, HERE - {Way.COMMAND}),
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


@pytest.mark.parametrize(
    ("node", "request_", "told"),
    [
        ("", ask.Run("x.py"), False),
        ("", ask.Run("x.py", detach=True), True),
        ("", ask.Run("x.py", detach=True, notify="none"), False),
        ("", ask.Run("x.py", notify="node"), True),
        ("node = true", ask.Run("x.py"), True),
        ("node = true", ask.Run("x.py", dry_run=True), False),
        ("node = true", ask.Run("x.py", notify="webhook"), False),
        ("node = false", ask.Run("x.py", detach=True), False),
        ("node = false", ask.Run("x.py", detach=True, notify="node"), True),
    ],
)
def test_a_node_is_told_of_the_webhook_where_it_is_to_post(
    node: str, request_: ask.Run, told: bool, home: Path
) -> None:
    own_file(home, f'webhook = "https://x/{SECRET}"\non = "failure"\n{node}')
    whom = {"address": f"https://x/{SECRET}", "on": ["failure"], "timeout": 10.0}
    assert node_notice(request_) == (whom if told else None)


def test_without_a_webhook_no_node_is_told() -> None:
    assert node_notice(ask.Run("x.py", detach=True)) is None
    with pytest.raises(UsageError, match="--notify node: none is configured"):
        node_notice(ask.Run("x.py", notify="node"))


def test_what_the_node_posts_no_console_does(webhook: Webhook) -> None:
    settings = NotifySettings(kinds=frozenset(NoticeKind), webhook=webhook.address)
    notifier = Notifier(settings, frozenset({Way.WEBHOOK}), lambda *_: None, lambda _: None)
    for event in scenes.failing():
        notifier.see(replace(event, told_by_node=True) if isinstance(event, PlanMade) else event)
    notifier.close(30)
    assert webhook.bodies == []


def test_services_are_told_by_apprise(webhook: Webhook) -> None:
    webhook.codes = [200, 500]
    address = webhook.address.removeprefix("http://")
    tell_services([f"json://{address}"], NOTICE, 60)
    assert (webhook.bodies[0]["title"], webhook.bodies[0]["type"]) == ("digits failed", "failure")
    assert webhook.bodies[0]["message"] == "rank 2: $(id) `id`"
    with pytest.raises(NotToldError, match=r"^did not take it: 'json, nosuch'"):
        tell_services([f"json://{address}", f"nosuch://{SECRET}"], NOTICE, 60)


def test_a_module_of_the_working_folder_is_not_taken_for_one_that_tells_services(
    webhook: Webhook, cwd: Path
) -> None:
    (cwd / "json.py").write_text(f"open({str(cwd / 'mark')!r}, 'w')\nraise SystemExit\n")
    tell_services([f"json://{webhook.address.removeprefix('http://')}"], NOTICE, 60)
    assert len(webhook.bodies) == 1
    assert not (cwd / "mark").exists()


def test_services_without_their_package_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(NotToldError, match=r"pip install 'distconsole\[notify\]'"):
        tell_services(["json://x"], NOTICE, 60)


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
        ('services = ["file///SECRET"]', "'services' must be addresses of apprise"),
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


OF_ITS_KIND = {"command": '["x"]', "allow_http": "true", "node": "true", "services": '["s://x"]'}


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_project_cannot_have_programs_started_here(key: str, tmp_path: Path) -> None:
    value = OF_ITS_KIND.get(key, '"https://x"')
    (tmp_path / "distconsole.toml").write_text(f"[notify]\nbell = false\n{key} = {value}\n")
    with pytest.raises(ConfigError, match=rf"'{key}' of \[notify\] is not read from a project's"):
        load_config(tmp_path)
