"""What a user has today for the same hang: ``torchfrtrace`` on the flight recorders, and py-spy on every rank by hand.

Neither says who the culprit is; what is judged is whether its output alone leads there.
"""

import contextlib
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distconsole.model.diagnosis.calls import Call
from distconsole_agent.node_folder.folders import SHARED_MEMORY
from distconsole_agent.roll_call import ways
from league.cases import Case

SECONDS = 60.0
ANALYSER = "torch.distributed.flight_recorder.fr_trace"


def look_by_hand(case: Case, calls: Mapping[str, tuple[Call, ...]]) -> dict[str, Any]:
    """Return what each tool tells of a training that hangs now.

    Args:
        calls: Of the diagnosis, for the ranks' processes.
    """
    ranks = {call.rank: call.pid for each in calls.values() for call in each if call.pid}
    return {"torchfrtrace": _analyse(case, ranks), "py-spy": _spy(case, ranks)}


def _analyse(case: Case, ranks: Mapping[int, int]) -> dict[str, Any]:
    rings = {path.parent for path in Path(SHARED_MEMORY).rglob("*.server")}
    told: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="league-fr-") as dumps:
        for rank, pid in ranks.items():
            socket = next((s for ring in rings if (s := ways.find_server(str(ring), pid))), None)
            with contextlib.suppress(ways.WayRefusedError, TypeError, ValueError):
                told[rank] = json.loads(ways.ask_server(socket or "", "fr_trace_json", 2.0))
        _name_groups(told)
        for rank, dump in told.items():
            Path(dumps, f"trace_{rank}").write_bytes(pickle.dumps(dump))
        if not any(dump.get("entries") for dump in told.values()):
            return {"ran": False, "why": "no rank has a flight recorder"}
        words = [sys.executable, "-m", ANALYSER, dumps, "-p", "trace_", "--allow-incomplete-ranks"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"ran": False, "why": f"no answer in {SECONDS:.0f} s"}
    said = f"{done.stdout}\n{done.stderr}"
    missing = {
        int(n)
        for found in re.findall(r"missing ranks:? \{?([\d, ]+)", said)
        for n in re.findall(r"\d+", found)
    }
    culprits = re.findall(r"Culprit rank (\d+)", said)
    named = missing | {int(each) for each in culprits}
    return {
        "ran": True,
        "named": sorted(named),
        "right": named == set(case.odd),
        "said": said[-1500:],
    }


def _name_groups(told: Mapping[int, dict[str, Any]]) -> None:
    """Put the members of each group into the dumps: without them, as Gloo's are, the analyser ends with a KeyError."""
    members: dict[str, set[int]] = {"0": set(told)}
    for rank, dump in told.items():
        for entry in dump.get("entries") or ():
            members.setdefault(entry["process_group"][0], set()).add(rank)
    config = {
        name: {"name": name, "desc": "", "ranks": str(sorted(ranks))}
        for name, ranks in members.items()
    }
    for dump in told.values():
        dump["pg_config"] = config


def _spy(case: Case, ranks: Mapping[int, int]) -> dict[str, Any]:
    program = shutil.which("py-spy")
    if program is None:
        return {"ran": False, "why": "py-spy is not on the PATH"}
    stacks = {}
    for rank, pid in ranks.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = [program, "dump", "--nonblocking", "--pid", str(pid)]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=5)
            stacks[rank] = done.stdout
    file, _, line = case.mark.partition(":")
    shows = bool(file) and all(
        re.search(rf"{file}:{line}\b", stacks.get(rank, "")) for rank in case.odd
    )
    return {"ran": bool(stacks), "line": shows, "stacks": len(stacks)}
