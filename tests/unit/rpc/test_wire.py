"""Nothing that a node sends gets further than the wire unless it is what was agreed.
A roll call from a node is bounded and typed; a field that is not as agreed is unknown, and the rest is read.
"""

import json
import math
from typing import Any

import pytest

from distconsole.errors import AgentError, PythonError, RequestError, StorageError
from distconsole.model.diagnosis.calls import Call
from distconsole.rpc import frames, wire
from distconsole.rpc.roll_calls import MAX_CALLS, read_call, read_calls
from distconsole.rpc.wire import check_result
from distconsole_agent.contract import protocol
from distconsole_agent.roll_call.calling import with_spans

AT = {"seq": 3, "t": 1.5}

ENTRIES: dict[str, dict[str, Any]] = {
    "state": {
        "rank": 0,
        "local_rank": 0,
        "pid": 9,
        "state": "failed",
        "exit_code": 139,
        "signal": 11,
        "t_ns": 5,
    },
    "phase": {"rank": 0, "phase": "import_torch", "seconds": 0.5},
    "window": {
        "rank": 0,
        "step": 9,
        "steps": 10,
        "skipped": 0,
        "step_ms": [1.0, 2.0],
        "data_ms": None,
        "forward_ms": 1.0,
        "backward_ms": 1.0,
        "optimizer_ms": 1.0,
        "samples_s": 10.0,
        "metrics": {"loss": 0.5},
        "dropped": 0,
        "points": {"loss": [[9, 0.5, 32], [10, 0.4, None]]},
    },
    "sample": {
        "node": {"cpu": 1.0},
        "gpus": [
            {
                "gpu": 0,
                "util": 5,
                "processes": [
                    {"pid": 1, "user": "u", "command": "c", "mem_used": 1, "rank": None}
                ],
            }
        ],
    },
    "log": {"rank": None, "stream": "out", "offset": 0, "text": "a\x1b[31m\n"},
    "failure": {
        "rank": 1,
        "t_ns": 5,
        "exit_code": 1,
        "signal": None,
        "error": "E",
        "traceback": "a\nb",
    },
    "note": {"check": "x.y", "severity": "warn", "summary": "s", "hint": "h"},
    "verdict": {
        "state": "failed",
        "exit_code": 1,
        "first_failure": {"rank": 0, "host": "h", "exit_code": 1, "error": "e", "traceback": "t"},
    },
    "end": {"state": "succeeded", "exit_code": 0, "seconds": 2.0},
}


def entry(kind: str, **changes: object) -> dict[str, Any]:
    return {**AT, "kind": kind, **ENTRIES[kind], **changes}


def test_the_bounds_cover_what_the_protocol_promises() -> None:
    assert frames.MAX_ENTRIES >= protocol.MAX_ENTRIES_PER_ITEM
    assert frames.MAX_NAMES >= protocol.MAX_METRICS
    assert frames.MAX_TEXT >= protocol.MAX_LOG_TEXT


@pytest.mark.parametrize(
    "wrong",
    [
        entry("state", rank=-1),
        entry("state", rank="0"),
        entry("state", pid=-5),
        entry("state", seq=0),
        entry("window", step=2**70),
        entry("window", metrics={"x": "y"}),
        entry("window", points={"loss": [[1, 2]]}),
        entry("window", points={"loss": [[1, 2.0, 1.0]] * 5000}),
        entry("window", metrics={f"m{i}": 0.0 for i in range(300)}),
        entry("end", exit_code=10**9),
        entry("note", summary="x" * 200_000),
        entry("note", severity=None),
        entry("log", offset=-1),
        entry("sample", gpus=[{"gpu": 0, "util": 1e30}]),
        {**AT, "kind": "surprise"},
        {**AT},
        [],
    ],
)
def test_an_entry_out_of_bounds_is_left_out_and_counted(wrong: object) -> None:
    found = wire.check_item("follow", {"entries": [entry("end"), wrong, entry("phase")]})
    kinds = [json.loads(body)["kind"] for body in found.bodies]
    assert (kinds, len(found.entries), found.unread) == (["end", "phase"], 2, 1)


@pytest.mark.parametrize("wrong", [{}, {"entries": {}}, {"entries": [], "trouble": 5}])
def test_an_item_that_is_none_is_an_agent_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="not as agreed"):
        wire.check_item("follow", wrong)


def test_a_loss_may_be_nan_and_infinite() -> None:
    line = protocol.encode(
        {"id": 1, "item": {"entries": [entry("window", metrics={"loss": math.nan})]}}
    )
    answer = wire.decode_answer(line)
    assert isinstance(answer.item, dict)
    item = wire.check_item("follow", answer.item)
    assert math.isnan(item.entries[0].metrics["loss"])
    assert math.isnan(json.loads(item.bodies[0])["metrics"]["loss"])


def test_texts_are_cleaned_except_what_was_printed() -> None:
    hostile = "x\x1b]0;evil\x07\n\u202ey"
    item = wire.check_item(
        "follow",
        {
            "entries": [
                entry("note", summary=hostile),
                entry("failure", error=hostile, traceback="a\x1b[2J\nb"),
                entry("window", metrics={"lo\x1bss": 1.0}),
                entry("log", text=hostile),
            ]
        },
    )
    note, failure, window, log = map(json.loads, item.bodies)
    assert note["summary"] == "x y"
    assert (failure["error"], failure["traceback"]) == ("x y", "a\nb")
    assert list(window["metrics"]) == ["los"] or list(window["metrics"]) == ["loss"]
    assert log["text"] == hostile


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"id": 1}',
        b'{"id": -1, "result": {}}',
        b'{"id": "1", "result": {}}',
        b'{"id": 1, "result": []}',
        b'{"id": 1, "result": {}, "item": {}}',
        b'{"id": 1, "error": "x"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": ' + b"9" * 5000 + b', "result": {}}',
    ],
)
def test_a_line_that_is_no_answer_is_an_agent_error(line: bytes) -> None:
    with pytest.raises(AgentError):
        wire.decode_answer(line)


def test_a_deep_answer_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(wire.MAX_DEPTH + 2):
        deep = {"a": deep}
    with pytest.raises(AgentError, match="nested"):
        wire.check_result("probe", {"facts": deep})


def test_a_number_that_is_too_long_for_arithmetic_is_refused() -> None:
    facts = {"facts": {"bytes": [2**64 - 1, -(2**63), True]}}
    assert wire.check_result("probe", facts) == facts
    with pytest.raises(AgentError, match="a number of 1329 bits"):
        wire.check_result("probe", {"facts": {"bytes": [10**400]}})
    with pytest.raises(AgentError, match=r"the number 1e\+308"):
        wire.check_result("probe", {"facts": {"seconds": 1e308}})
    diverged = {"seq": 1, "t": 2.0, "rank": 0, "step": 3, "steps": 1, "metrics": {"löss": 1e300}}
    told = {"entries": [{"kind": "window", **diverged}], "journal": "a"}
    (entry,) = wire.check_item("follow", told).entries
    assert entry.metrics == {"löss": 1e300}


def test_a_refusal_carries_its_code_and_clean_words() -> None:
    error = wire.refusal({"code": "no_such_run", "message": "a\x1b[2Jb", "hint": "c"})
    assert isinstance(error, RequestError)
    assert (error.code, error.message, error.hint) == ("no_such_run", "ab", "c")
    assert isinstance(wire.refusal({"code": 5}), AgentError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("storage", StorageError), ("python", PythonError), ("start_failed", AgentError)],
)
def test_a_bridge_s_refusal_is_told_apart(code: str, kind: type) -> None:
    line = json.dumps({"error": {"code": code, "message": "m", "hint": ""}}).encode()
    assert type(wire.start_refusal(line)) is kind
    assert wire.start_refusal(b'{"error": 5}') is None
    assert wire.start_refusal(b"Welcome") is None


def test_a_line_without_escapes_needs_no_cleaning_and_one_with_them_is_cleaned() -> None:
    assert wire.is_plain(b'{"id":1,"item":{"entries":[]}}')
    for text in ("a\x1b[2Jb", "a\nb", "\u202e", "\x7f", "\x9b"):
        assert not wire.is_plain(json.dumps({"id": 1, "item": {"text": text}}).encode())
        assert not wire.is_plain(json.dumps({"text": text}, ensure_ascii=False).encode())


def test_what_only_pythons_parser_takes_is_still_an_answer() -> None:
    answer = wire.decode_answer(b'{"id":1,"item":{"loss":NaN,"text":"\\ud800"}}')
    assert str(answer.item) == str({"loss": math.nan, "text": "\ud800"})
    with pytest.raises(AgentError):
        wire.decode_answer(b'{"id":1,"item":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001)


@pytest.mark.parametrize("kind", ENTRIES)
def test_an_entry_is_stored_as_it_came_and_means_the_same_by_either_parser(kind: str) -> None:
    body = json.dumps(entry(kind), separators=(",", ":"))
    line = f'{{"id":7,"item":{{"entries":[{body}],"journal":"w"}}}}'.encode()
    number, item = wire.find_item(line)
    read = wire.read_item("follow", item, plain=wire.is_plain(line))
    assert (number, read.journal, read.bodies) == (7, "w", (body.encode(),))
    (typed,) = read.entries
    assert (type(typed).__name__, typed.seq, typed.t) == (f"{kind.title()}Entry", 3, 1.5)
    assert read == wire.check_item("follow", json.loads(item))


def test_what_a_hostile_node_says_is_cleaned_before_it_is_stored() -> None:
    hostile = "x\x1b]0;evil\x07\n\u202ey"
    told = [
        entry("note", summary=hostile),
        entry("log", text=hostile),
        entry("log", text=hostile, more=hostile),
        entry("log", stream=hostile),
        {"seq": 9, "kind": "surprise"},
    ]
    line = json.dumps({"id": 1, "item": {"entries": told}}, separators=(",", ":")).encode()
    read = wire.read_item("follow", wire.find_item(line)[1], plain=wire.is_plain(line))
    note, log, unknown, odd = map(json.loads, read.bodies)
    assert (read.entries[0].summary, note["summary"]) == ("x y", "x y")
    assert (read.entries[1].text, log["text"]) == (hostile, hostile)
    assert (unknown["text"], unknown["more"]) == (hostile, "x y")
    assert (odd["stream"], read.entries[3].stream, read.unread) == ("x y", "x y", 1)
    assert read == wire.check_item("follow", {"entries": told})


def test_samples_are_typed_once_and_cleaned() -> None:
    for name in ("NVIDIA H100", "NVIDIA\x1b[2J H100"):
        item = json.dumps({"node": {"cpu": 1.0}, "gpus": [{"gpu": 0, "name": name}]}).encode()
        read = wire.read_item("watch", item, plain=wire.is_plain(item))
        assert isinstance(read, frames.SampleBody)
        assert read.gpus[0].name == "NVIDIA H100"
    for wrong in (b'{"gpus":5}', b'{"gpus":"\\u001b"}'):
        with pytest.raises(AgentError, match="item of watch is not as agreed"):
            wire.read_item("watch", wrong, plain=wire.is_plain(wrong))


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"item":{"entries":[]},"result":{}}',
        b'{"id":1,"result":{}}',
        b'{"id":-1,"item":{}}',
        b'{"id":1,"item":{"loss":NaN}}',
        b'{"id":1,"item":{"text":"\\ud800"}}',
        b"no line",
    ],
)
def test_a_line_that_is_no_plain_item_is_read_whole(line: bytes) -> None:
    assert wire.find_item(line)[1] == b""


@pytest.mark.parametrize("item", [b'{"t\xe5": 1}', b"[" * 60_000, b'{"cpu": NaN}', b""])
@pytest.mark.parametrize("op", ["top", "follow", "watch"])
@pytest.mark.parametrize("plain", [True, False])
def test_an_item_that_is_no_json_is_an_agent_error(item: bytes, op: str, plain: bool) -> None:
    plain = plain and item.isascii()
    with pytest.raises(AgentError):
        wire.read_item(op, item, plain=plain)


FRAME = {"function": "f", "file": "/t.py", "line": 3}


def test_what_is_not_told_is_unknown() -> None:
    assert read_call({"rank": 3, "pid": 7, "alive": True}) == Call(rank=3, pid=7, alive=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"wchan": "x" * 513},
        {"state": 7},
        {"silent_s": -1.0},
        {"pid": -4},
        {"threads": [{"frames": [FRAME] * 65}]},
        {"threads": [{}] * 65},
        {"children": [{"pid": 1}] * 257},
        {"collectives": [{"seq": "many"}]},
        {"collectives": [{"seq": 1, "input_sizes": [[2**64]]}]},
        {"gpu": []},
        {"step": -2},
        {"ended": {"signal": 1 << 40}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_field_beyond_its_bounds_is_unknown_and_costs_no_other(wrong: dict[str, Any]) -> None:
    call = read_call({"rank": 3, "pid": 7, "main_cpu_s": 0.5, **wrong})
    assert call is not None
    kept = {"pid": 7} if "pid" not in wrong else {}
    assert call == Call(rank=3, main_cpu_s=0.5, **kept)


@pytest.mark.parametrize("wrong", [{}, {"rank": -1}, {"rank": "1"}, {"rank": 10**7}])
def test_a_call_that_names_no_rank_is_none(wrong: dict[str, Any]) -> None:
    assert read_call({"pid": 7, **wrong}) is None


@pytest.mark.parametrize(
    "wrong", [{}, {"ranks": "abc"}, {"ranks": [{"rank": 1}] * (MAX_CALLS + 1)}]
)
def test_an_answer_without_ranks_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="roll_call"):
        read_calls(wrong)


def test_escapes_are_stripped_and_a_rank_counts_once() -> None:
    frames = [{**FRAME, "function": "\x1b[31mred\x1b[0m\u202e"}]
    told = {"ranks": [{"rank": 1, "threads": [{"main": True, "frames": frames}]}, {"rank": 1}, 5]}
    (call,) = read_calls(check_result("roll_call", told))
    assert call.frames[0].function == "red"


def test_a_group_of_very_many_ranks_is_told_by_its_first_and_last() -> None:
    told = with_spans({"collectives": [{"seq": 1, "ranks": list(range(8192))}]})
    assert len(json.dumps(told)) < 100
    calls = read_calls({"ranks": [{"rank": rank, **told} for rank in range(2)]})
    assert [call.collectives[0].ranks for call in calls] == [tuple(range(8192))] * 2
    assert calls[0].collectives[0].ranks is calls[1].collectives[0].ranks


@pytest.mark.parametrize("ranks", [[*range(64), 65], list(range(63)), []])
def test_other_groups_are_told_rank_by_rank(ranks: list[int]) -> None:
    assert with_spans({"collectives": [{"seq": 1, "ranks": list(ranks)}]}) == {
        "collectives": [{"seq": 1, "ranks": ranks}]
    }
