"""Flight recorders of two versions of torch, as they were dumped: gloo by 2.13 as JSON, NCCL by 2.5 pickled."""

import copy
import json
import pickle
from typing import Any

import pytest

from distconsole_agent.roll_call.recorder import is_off, last_collectives, read_dump, read_health

GLOO = {
    "comm_lib_version": "",
    "nccl_comm_state": {},
    "pg_config": {"": {"desc": "", "name": "", "ranks": "[]"}},
    "pg_status": {
        "0": {
            "last_completed_collective": "3",
            "last_enqueued_collective": "6",
            "last_started_collective": "-1",
        }
    },
    "version": "2.10",
    "entries": [
        {
            "collective_seq_id": seq,
            "input_dtypes": ["Float"],
            "input_sizes": [[4, 3]],
            "is_p2p": False,
            "op_id": seq,
            "output_dtypes": ["Float"],
            "output_sizes": [[4, 3]],
            "p2p_seq_id": 0,
            "pg_id": group,
            "process_group": [str(group), name],
            "profiling_name": f"gloo:{op}",
            "record_id": record,
            "retired": retired,
            "state": "scheduled",
            "thread_id": "140711339547520",
            "thread_name": "python",
            "time_created_ns": 1795462015_002767920 + record,
            "time_discovered_completed_ns": 0,
            "time_discovered_started_ns": 0,
            "timeout_ms": 1800000,
        }
        for record, (group, name, seq, op, retired) in enumerate(
            [
                (0, "default_pg", 1, "all_reduce", True),
                (1, "mine", 1, "broadcast", True),
                (0, "default_pg", 2, "all_gather", True),
                (0, "default_pg", 3, "all_reduce", False),
            ]
        )
    ],
}

NCCL = {
    "version": "2.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {
        "0": {
            "last_enqueued_collective": 2,
            "last_started_collective": -1,
            "last_completed_collective": 2,
        }
    },
    "entries": [
        {
            "frames": [{"name": "<module>", "filename": "<string>", "line": 1}],
            "record_id": 0,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 1,
            "p2p_seq_id": 0,
            "op_id": 1,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1724779239936775119,
            "input_sizes": [[3, 4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[3, 4]],
            "output_dtypes": ["Float"],
            "state": "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": 1724779239975811724,
            "retired": True,
            "timeout_ms": 600000,
            "is_p2p": False,
        }
    ],
}


def test_gloos_last_collective_waits_and_what_is_retired_is_done() -> None:
    dump = read_dump(json.dumps(GLOO).encode())
    waiting, done = last_collectives(dump, 1795462056.0)
    assert (waiting["group"], waiting["name"], waiting["backend"]) == ("0", "default_pg", "gloo")
    assert (waiting["seq"], waiting["op"], waiting["state"]) == (3, "all_reduce", "scheduled")
    assert (waiting["done_seq"], round(waiting["age_s"])) == (2, 41)
    assert (waiting["input_sizes"], waiting["input_dtypes"]) == ([[4, 3]], ["Float"])
    assert [(each["seq"], each["op"]) for each in waiting["recent"]] == [
        (2, "all_gather"),
        (1, "all_reduce"),
    ]
    assert (done["name"], done["op"], done["state"]) == ("mine", "broadcast", "completed")


def test_nccls_pickled_dump_of_an_older_torch_is_read_by_the_same_words() -> None:
    (only,) = last_collectives(read_dump(pickle.dumps(NCCL, protocol=2)), 1724779240.0)
    assert (only["seq"], only["op"], only["backend"]) == (1, "all_reduce", "nccl")
    assert (only["ranks"], only["state"], only["done_seq"]) == ([0, 1], "completed", 1)


def changed(**more: Any) -> dict[str, Any]:
    dump: dict[str, Any] = copy.deepcopy(NCCL)
    dump["entries"][0].update(more)
    return dump


def test_what_nccls_watchdog_gave_up_has_not_completed_and_a_send_has_its_own_sequence() -> None:
    (only,) = last_collectives(changed(state="started", retired=True), 0.0)
    assert (only["state"], only["done_seq"]) == ("started", -1)
    sent = changed(is_p2p=True, p2p_seq_id=7, profiling_name="nccl:send 0->1")
    (only,) = last_collectives(sent, 0.0)
    assert (only["p2p"], only["seq"], only["op"]) == (True, 7, "send 0->1")


def test_groups_that_worked_without_an_entry_had_the_recorder_off() -> None:
    assert is_off({**NCCL, "entries": []})
    assert not is_off(NCCL)
    assert not is_off({"pg_status": {}, "entries": []})


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nonsense", pickle.dumps(Evil()), pickle.dumps([1, 2])]
)
def test_what_is_no_dump_runs_nothing(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no dump of the flight recorder"):
        read_dump(body)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"process_group": [], "profiling_name": None, "input_sizes": 3, "input_dtypes": [None]},
        {"collective_seq_id": "x" * 99, "record_id": True, "time_created_ns": [], "state": 4},
        {"input_sizes": [[None, "a"], 3], "process_group": {"a": 1}, "is_p2p": "yes"},
    ],
)
def test_an_entry_of_nonsense_is_unknown_and_no_error(entry: dict[str, Any]) -> None:
    (only,) = last_collectives({"entries": [entry, 3, None], "pg_config": [], "pg_status": 1}, 1.0)
    assert (only["seq"], only["ranks"], only["state"]) == (-1, [], "scheduled")


def test_a_backend_that_torch_calls_unhealthy_is_named() -> None:
    assert read_health(b'{"healthy":true,"unhealthy_backends":[]}') == []  # as torch 2.15.0
    answer = b'{"healthy":false,"unhealthy_backends":["nccl2","\\u001b[2J"]}'
    assert read_health(answer) == ["nccl2"]


@pytest.mark.parametrize("body", [b"", b"pong", b"[1]", b'{"healthy": true}', b"[" * 100_000])
def test_what_is_no_health_check_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no health check of torch"):
        read_health(body)
