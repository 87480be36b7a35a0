"""Roll calls from a few words a rank, as ``tests/unit/runs/diagnosis/cases.yaml`` has them.

``waits: all_reduce 2507 train.py:88`` waits in collective 2507 of the default group; ``at: f data.py:31`` is in
the script's own function ``f``, with 2506 complete. ``group: tp0 0-3`` names another group. Everything else is
a field of the call.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from distconsole.model.diagnosis.calls import Call
from distconsole.runs.diagnosis.roll import Roll

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
LIBRARIES = {
    "all_reduce": [("all_reduce", "distributed/distributed_c10d.py", 2935), ("wrapper", "distributed/c10d_logger.py", 83)],
    "backward": [("_engine_run_backward", "autograd/graph.py", 865), ("backward", "autograd/__init__.py", 356), ("backward", "_tensor.py", 630)],
    "init_process_group": [("rendezvous", "distributed/rendezvous.py", 278), ("init_process_group", "distributed/distributed_c10d.py", 1768), ("wrapper", "distributed/c10d_logger.py", 83)],
    "dataloader": [("_try_get_data", "utils/data/dataloader.py", 1275), ("_get_data", "utils/data/dataloader.py", 1440), ("_next_data", "utils/data/dataloader.py", 1491), ("__next__", "utils/data/dataloader.py", 732)],
    "save": [("_save", "serialization.py", 1250), ("save", "serialization.py", 970)],
    "compile": [("compile_fx", "_inductor/compile_fx.py", 1500), ("_compile", "_dynamo/convert_frame.py", 1190)],
    "destroy": [("destroy_process_group", "distributed/distributed_c10d.py", 2200)],
}  # fmt: skip
OTHERS = {
    "lock": [("acquire", "/usr/lib/python3.11/threading.py", 320)],
    "join": [("_wait_for_tstate_lock", "/usr/lib/python3.11/threading.py", 1139), ("join", "/usr/lib/python3.11/threading.py", 1119)],
    "queue": [("wait", "/usr/lib/python3.11/threading.py", 327), ("get", "/usr/lib/python3.11/queue.py", 171)],
    "exit": [("_shutdown", "/usr/lib/python3.11/threading.py", 1590)],
    "pdb": [("cmdloop", "/usr/lib/python3.11/cmd.py", 126), ("interaction", "/usr/lib/python3.11/pdb.py", 440)],
    "import": [("_find_and_load", "<frozen importlib._bootstrap>", 1178)],
    "horovod": [("synchronize", "/opt/venv/lib/python3.11/site-packages/horovod/torch/mpi_ops.py", 1290)],
}  # fmt: skip
"""What stands above the script's own frame."""
MAIN = {"function": "<module>", "file": "/home/u/train.py", "line": 140}
POSITION = ("waits", "at", "in", "state", "cpu_s", "main_cpu_s", "horovod")
FIELDS = frozenset(Call.__struct_fields__)


def roll_of(case: Mapping[str, Any]) -> Roll:
    """Return the roll call of a case: ``world`` ranks, two a host unless ``per_host`` says so."""
    world, per_host = case["world"], case.get("per_host", 2)
    hosts = {rank: f"node{rank // per_host + 1}" for rank in range(world)}
    away = case.get("away", {})
    silent = set(case.get("no_call", ())) | {r for r, host in hosts.items() if host in away}
    calls = {}
    for rank in range(world):
        if rank not in silent:
            own: Mapping[str, Any] = next(
                (words for key, words in case.items() if _names(key, rank)), {}
            )
            calls[rank] = call_of(rank, _merged(case.get("each", {}), own), world)
    seconds = {each: case.get(each, 0.0) for each in ("longest_s", "stepping_s")}
    return Roll("run-1", calls, hosts, away, **seconds)


def _merged(each: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all do, but where a rank is elsewhere."""
    elsewhere = {"waits", "at"} & own.keys()
    kept = {key: value for key, value in each.items() if not elsewhere or key not in POSITION}
    return {**kept, **own}


def _names(key: object, rank: int) -> bool:
    """Whether ``3`` or ``3-7`` names a rank."""
    if isinstance(key, int):
        return key == rank
    first, dash, last = str(key).partition("-")
    return bool(dash) and first.isdigit() and int(first) <= rank <= int(last)


def call_of(rank: int, words: Mapping[str, Any], world: int) -> Call:
    """Return the call of a rank of whom ``words`` tell."""
    body: dict[str, Any] = {
        "rank": rank, "pid": 4000 + rank, "alive": True, "state": "S", "way": "server", "step": 2506,
        "stage": "between", "silent_s": 41.0, "over_s": 1.0, "cpu_s": 0.0, "main_cpu_s": 0.0,
    }  # fmt: skip
    frames, collectives = [], []
    if "waits" in words:
        op, number, place = words["waits"].split()
        frames = _above("backward" if op == "backward" else "all_reduce", op)
        frames.append(_own("train_epoch", place))
        name = "all_reduce" if op == "backward" else op
        if number != "-":
            collectives.append(_collective(words, int(number), name, "started", world))
    if "at" in words:
        function, place = words["at"].split()
        frames = [*_above(words.get("in", ""), ""), _own(function, place)]
        if words.get("done", 2506) is not None:
            collectives.append(
                _collective(words, words.get("done", 2506), "all_reduce", "completed", world)
            )
    collectives += words.get("also", [])
    body["collectives"] = [] if words.get("recorder", True) is False else collectives
    if frames:
        body["threads"] = [
            {"name": "MainThread", "tid": 1, "main": True, "frames": [*frames, MAIN]}
        ]
    body |= {name: value for name, value in words.items() if name in FIELDS}
    if "holder" in words:
        function, place = words["holder"].split()
        body["threads"].append({"name": "saver", "tid": 77, "frames": [_own(function, place)]})
    return msgspec.convert(body, Call)


def _above(name: str, op: str) -> list[dict[str, Any]]:
    frames = [
        {"function": op if op and function == "all_reduce" else function, "file": f"{TORCH}/{file}", "line": line}
        for function, file, line in LIBRARIES.get(name, ())
    ]  # fmt: skip
    frames += [
        {"function": f, "file": file, "line": line} for f, file, line in OTHERS.get(name, ())
    ]
    return frames


def _own(function: str, place: str) -> dict[str, Any]:
    file, _, line = place.partition(":")
    return {"function": function, "file": f"/home/u/{file}", "line": int(line)}


def _collective(
    words: Mapping[str, Any], seq: int, op: str, state: str, world: int
) -> dict[str, Any]:
    group, _, members = words.get("group", "0").partition(" ")
    first, _, last = members.partition("-")
    ranks = list(range(int(first), int(last or first) + 1)) if members else list(range(world))
    return {
        "group": group, "name": "default_pg" if group == "0" else group, "ranks": ranks, "seq": seq, "op": op,
        "state": state, "done_seq": seq if state == "completed" else seq - 1,
        "input_sizes": [words.get("shape", [1048576])], "input_dtypes": [words.get("dtype", "Float")],
        "age_s": 41.0,
    }  # fmt: skip
