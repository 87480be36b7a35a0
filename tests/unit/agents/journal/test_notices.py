"""What a run's first node tells a webhook, from the entries of its journal."""

import fcntl
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.webhook import post
from distconsole_agent.journal.notices import FILE, KEPT, MAX_NOTICES, NodeNotices
from fakes.specs import run_spec
from fakes.webhooks import SECRET, Webhook, serving

SPEC = run_spec(run="r-1", name="digits", nodes=[{"host": h, "address": "", "ranks": []} for h in ("n1", "n2")])  # fmt: skip
FIRST = {"rank": 3, "host": "n2", "error": "ValueError: bo\x1b[31mom\nat /data"}
FAIL = {"kind": "note", "t": 6.0, "check": "run.unkillable", "severity": "fail", "summary": "s"}
END = {"kind": "end", "t": 9.0, "state": "failed", "exit_code": 1, "seconds": 62.4}


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with serving() as server:
        yield server


def told(folder: Path, webhook: Webhook, *on: str) -> NodeNotices:
    whom = {"address": webhook.address, "on": on, "timeout": 10.0}
    (folder / FILE).write_text(json.dumps(whom))
    return NodeNotices(str(folder), SPEC)


def state(rank: int, state: str) -> dict[str, Any]:
    return {"kind": "state", "t": 5.0, "rank": rank, "state": state}


def await_bodies(webhook: Webhook, count: int) -> list[dict[str, Any]]:
    for _ in range(count):
        assert webhook.came.acquire(timeout=20)
    return webhook.bodies


def test_a_stall_a_finding_and_the_failure_are_told(tmp_path: Path, webhook: Webhook) -> None:
    notices = told(tmp_path, webhook, "failure", "stall", "finding")
    notices.see([state(0, "running"), state(0, "stalled"), state(1, "stalled")])
    notices.see([FAIL, FAIL, {**FAIL, "check": "run.stall"}, {**FAIL, "severity": "warn"}])
    notices.see([{"kind": "verdict", "t": 8.0, "first_failure": FIRST}, END])
    stall, finding, end = await_bodies(webhook, 3)
    assert stall["text"] == "digits stalled: rank 0 on n1 makes no step"
    assert (finding["kind"], finding["text"]) == ("finding", "digits is in trouble: s")
    assert end == {
        "event": "notice",
        "kind": "failure",
        "title": "digits failed",
        "text": "digits failed: after 1 min 2 s, exit code 1: rank 3 on n2: ValueError: bo [31mom at /data",
        "t": 9.0,
        "run": "r-1",
        "name": "digits",
        "state": "failed",
        "exit_code": 1,
        "rank": 3,
        "host": "n2",
    }


def test_notices_that_were_asked_for_are_sent_there(tmp_path: Path, webhook: Webhook) -> None:
    notices = told(tmp_path, webhook, "finish")
    notices.see([state(0, "stalled"), {**END, "state": "succeeded", "exit_code": 0}])
    (body,) = await_bodies(webhook, 1)
    assert (body["kind"], body["text"]) == ("finish", "digits succeeded: after 1 min 2 s")
    notices.thread.join(20)
    assert not (tmp_path / FILE).exists()


def test_troubles_flood_no_one_and_the_end_is_sent(tmp_path: Path, webhook: Webhook) -> None:
    notices = told(tmp_path, webhook, "stall", "failure")
    for _ in range(2 * MAX_NOTICES):
        notices.see([state(0, "stalled"), state(0, "running")])
    notices.see([END])
    bodies = await_bodies(webhook, MAX_NOTICES + 1)
    assert bodies[-1]["kind"] == "failure"


def test_a_refused_notice_is_a_note_without_its_address(tmp_path: Path, webhook: Webhook) -> None:
    webhook.codes = [404]
    notices = told(tmp_path, webhook, "stall")
    notices.see([state(0, "stalled")])
    note = notices.entries.get(timeout=20)
    assert (note["kind"], note["severity"]) == ("note", "warn")
    assert note["summary"] == "n1 could not tell of this run: the webhook answered 404"
    assert SECRET not in json.dumps(note)
    notices.close()


@pytest.mark.parametrize("content", [None, "", "[]", '{"address": "https://x"}'])
def test_without_a_whole_file_nobody_is_told(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)
    notices = NodeNotices(str(tmp_path), SPEC)
    notices.see([state(0, "stalled"), END])
    assert notices.thread is None


def come_back(folder: Path, *stalled: int) -> NodeNotices:
    return NodeNotices(str(folder), SPEC, stalled)


def test_an_agent_that_comes_back_tells_nothing_again(tmp_path: Path, webhook: Webhook) -> None:
    notices = told(tmp_path, webhook, "failure", "stall", "finding")
    notices.see([state(0, "stalled"), FAIL, {"kind": "verdict", "t": 8.0, "first_failure": FIRST}])
    await_bodies(webhook, 2)
    notices.close()
    again = come_back(tmp_path, 0)
    again.see([FAIL, state(1, "stalled"), END])
    end = await_bodies(webhook, 1)[-1]
    again.thread.join(20)
    assert [body["kind"] for body in webhook.bodies] == ["stall", "finding", "failure"]
    assert (end["rank"], end["host"]) == (3, "n2")
    assert list(tmp_path.iterdir()) == []


def test_a_notice_that_is_being_told_is_not_told_by_the_next_agent(
    tmp_path: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    posting, go = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        posting.set()
        assert go.wait(20)
        post(*arguments)

    monkeypatch.setattr("distconsole_agent.journal.notices.post", slow)
    notices = told(tmp_path, webhook, "stall", "failure")
    notices.see([state(0, "stalled")])
    assert posting.wait(20)
    notices.close()
    again = come_back(tmp_path, 0)
    again.see([END])
    go.set()
    again.thread.join(20)
    assert [body["kind"] for body in webhook.bodies] == ["stall", "failure"]


def test_a_run_that_had_stalled_is_not_reported_again(tmp_path: Path, webhook: Webhook) -> None:
    told(tmp_path, webhook, "stall", "failure").close()
    again = come_back(tmp_path, 0)
    again.see([state(1, "stalled"), END])
    again.thread.join(20)
    assert [body["kind"] for body in webhook.bodies] == ["failure"]


@pytest.mark.parametrize("cut", [b"", b'{"first": {"rank"'], ids=["whole", "cut by a crash"])
def test_the_next_agent_sends_what_is_left(tmp_path: Path, webhook: Webhook, cut: bytes) -> None:
    told(tmp_path, webhook, "stall", "failure").close()
    with (tmp_path / KEPT).open("ab") as file:
        file.write(cut)
    middle = come_back(tmp_path)
    middle.see([state(0, "stalled")])
    await_bodies(webhook, 1)
    middle.close()
    middle.thread.join(20)
    if not cut:
        middle.see([END])  # in the journal, when the agent was killed
    again = come_back(tmp_path, 0)
    if cut:
        again.see([END])
    again.thread.join(20)
    assert [body["kind"] for body in webhook.bodies] == ["stall", "failure"]


def test_an_agent_that_waited_for_the_last_one_is_mute(tmp_path: Path, webhook: Webhook) -> None:
    with (tmp_path / KEPT).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        again = told(tmp_path, webhook, "stall", "failure")
        again.see([state(0, "stalled"), END])
        (tmp_path / FILE).unlink()  # as the agent that holds the lock does at the end
        (tmp_path / KEPT).unlink()
    again.thread.join(20)
    assert webhook.bodies == []
