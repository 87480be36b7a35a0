"""The op ``survey``: finds the jobs of this user on this node, asks their ranks and NCCL, and reads their output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distconsole_agent.contract.protocol import CALL_GPU, MAX_LOG_TEXT
from distconsole_agent.contract.requests import AgentRequest
from distconsole_agent.roll_call import facts
from distconsole_agent.roll_call.calling import LOOK_SECONDS, Call, Seat, call_ranks
from distconsole_agent.supervisor.proctree import read_in_time
from distconsole_agent.survey.processes import read_processes
from distconsole_agent.survey.worlds import Rank, SurveyedJob, find_jobs
from distconsole_agent.system.procfs import open_files, printable, user_name
from distconsole_agent.telemetry.mapping import RunningRank, visible_devices
from distconsole_agent.telemetry.sampling import Sample

MAX_JOBS, MAX_RANKS = 32, 256
RAS_SECONDS = 1.5
RAS_PORT = 28028
MAX_RAS_BYTES = 256 * 1024
MAX_RAS_LINES, MAX_RAS_LINE = 16, 300
RAS_HEADS = ("Errors", "Warnings")
"""Sections with errors; tables of healthy parts stand before them."""

MAX_LOGS, FIRST_LOG_BYTES = 64, 16 * 1024
"""Files that are read in one answer, and how much of the end of one that is new."""
SERVER_NOT_ASKED = "a survey does not ask torch's worker server for stacks: that can end a process that is just ending"
STREAMS = {1: "out", 2: "err"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")

Result = dict[str, Any]
AskSample = Callable[[Sequence[RunningRank]], Sample]


def answer_survey(request: AgentRequest, sample: AskSample) -> Result:
    """Return the jobs of this user on this node (see ``protocol``).

    ``sample`` is asked for the GPUs of the ranks, as a run's are.
    """
    seconds, after = request.call_seconds, request.logs
    tree, seen = read_processes()
    jobs = find_jobs(tree, seen, endpoint_of)[:MAX_JOBS]
    told = [_describe(job) for job in jobs]
    ranks = [(told[at], rank) for at, job in enumerate(jobs) for rank in job.ranks.values()]
    if request.calls:
        asked = [rank for _, rank in ranks[:MAX_RANKS]]
        for (job, _), call, gpu in zip(ranks, _call(asked, seconds), _gpus(asked, sample)):
            job["ranks"].append({**call, "gpu": gpu})
    else:
        for job, rank in ranks:
            job["ranks"].append(_named(rank))
    return {
        "jobs": told,
        "logs": [] if after is None else _read_logs(jobs, after),
        "ras": ask_ras(RAS_SECONDS) if jobs and request.calls else [],
        "user": user_name(),
        "time_ns": time.time_ns(),
        "host": os.uname().nodename,
    }


def ask_ras(seconds: float, port: int = RAS_PORT) -> list[str]:
    """Return NCCL's complaints about the job of this node, a line each; empty without a listener.

    NCCL's RAS threads listen on each node's loopback: ``CLIENT PROTOCOL 2``, ``TIMEOUT N`` and ``VERBOSE
    STATUS``, one a line; the answer ends with the connection (NCCL 2.24 and later, user guide, "RAS").
    """
    until = time.monotonic() + seconds
    told = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=min(seconds, 0.5)) as sock:
            for line in ("CLIENT PROTOCOL 2", f"TIMEOUT {max(1, int(seconds))}"):
                sock.sendall(f"{line}\n".encode("ascii"))
                answer = sock.recv(4096)
                if not answer.startswith((b"SERVER PROTOCOL ", b"OK")):
                    return []
            sock.sendall(b"VERBOSE STATUS\n")
            while len(told) < MAX_RAS_BYTES and time.monotonic() < until:
                sock.settimeout(max(0.01, until - time.monotonic()))
                chunk = sock.recv(1 << 16)
                if not chunk:
                    break
                told += chunk
    except OSError:
        pass
    return read_ras(told.decode("utf-8", "replace"))


def read_ras(text: str) -> list[str]:
    """Return the paragraphs below ``Errors`` and ``Warnings``, each as one line: the error, then its ranks."""
    found: list[str] = []
    inside = False
    for paragraph in text.replace("\r", "").split("\n\n"):
        lines = [" ".join(line.split()) for line in paragraph.splitlines() if line.strip()]
        if lines and lines[0] in RAS_HEADS:
            inside, lines = True, [line for line in lines[1:] if set(line) != {"="}]
        elif len(lines) > 1 and set(lines[1]) == {"="}:
            inside = False
        if inside and lines:
            found.append(f"{lines[0]}: {'; '.join(lines[1:])}"[:MAX_RAS_LINE])
    return found[:MAX_RAS_LINES]


def _describe(job: SurveyedJob) -> Result:
    ages = [rank.seen.process.age_seconds for rank in job.ranks.values()]
    return {
        "key": job.key,
        "launcher": "distconsole" if job.run else job.launcher,
        "script": job.script,
        "endpoint": job.endpoint,
        "ident": job.ident,
        "here": job.here,
        "spawned": job.spawned,
        "leads": job.spawned and bool(listens(job)),
        "run": job.run,
        "size": job.size,
        "age_s": round(max(ages), 1),
        "gone": job.gone(),
        "ranks": [],
    }


def _named(rank: Rank) -> Call:
    return {
        "rank": rank.rank,
        "local_rank": max(rank.local, 0),
        "pid": rank.seen.pid,
        "alive": True,
    }


def _call(ranks: Sequence[Rank], seconds: float) -> list[Call]:
    """Return a CALL of each rank; if its main thread still runs, with a second look at its place."""
    rests, raised = _rests([rank.seen.pid for rank in ranks]), read_errors(ranks)
    seats = []
    for rank, rest in zip(ranks, rests):
        said = raised.get(rank.seen.told.get("TORCHELASTIC_ERROR_FILE", ""), "")
        told = {**_named(rank), "silent_s": rest, "raised": said}
        log = next((path for stream, path, _ in _outputs(rank) if stream == "err"), "")
        server = rank.seen.told.get("TORCH_WORKER_SERVER_SOCKET", "")
        seats.append(Seat(rank.seen.pid, told, log, server))
    calls = call_ranks(seats, os.devnull, seconds)
    for refused in (each for call in calls for each in call.get("refused") or ()):
        if refused["way"] == "server":
            refused["why"] = SERVER_NOT_ASKED
    lively = [at for at, call in enumerate(calls) if call.get("threads") and not rests[at]]
    for at, again in zip(lively, call_ranks([seats[at] for at in lively], os.devnull, seconds)):
        if again.get("threads") and _place(again) != _place(calls[at]):
            calls[at]["stage"] = "stepping"
    return calls


def read_errors(ranks: Sequence[Rank]) -> dict[str, str]:
    """Return the ranks' exceptions, by the file that torchrun names to each for it (torch's ``@record`` writes it)."""
    paths = {rank.seen.told.get("TORCHELASTIC_ERROR_FILE", "") for rank in ranks}
    found = {}
    for path, text in read_in_time([path for path in paths if path.startswith("/")]).items():
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            said = str(json.loads(text or b"")["message"]["message"])
            found[path] = printable(said.encode("utf-8", "replace"), facts.MAX_WORDS)
    return found


def _gpus(ranks: Sequence[Rank], sample: AskSample) -> list[Result | None]:
    """Return the use of each rank's GPU; None without one, or if unknown."""
    processes = [
        RunningRank(at, rank.local, rank.seen.pid, visible_devices(rank.seen.told))
        for at, rank in enumerate(ranks)
    ]
    gpus = {gpu["rank"]: gpu for gpu in sample(processes).gpus} if ranks else {}
    found = (gpus.get(at) for at in range(len(ranks)))
    return [gpu and {name: gpu[field] for name, field in CALL_GPU.items()} for gpu in found]


def _rests(pids: Sequence[int]) -> list[float | None]:
    """Return for how long each main thread has not run: 0 if it runs, None if unknown."""
    before = [facts.last_run_of(f"{pid}/task/{pid}") for pid in pids]
    time.sleep(LOOK_SECONDS)
    rests: list[float | None] = []
    for pid, then in zip(pids, before):
        now, here = facts.last_run_of(f"{pid}/task/{pid}"), facts.last_run_of("thread-self")
        if then is None or now is None or here is None:
            rests.append(None)
        else:
            rests.append(0.0 if now != then else round(max(LOOK_SECONDS, here - now), 2))
    return rests


def _place(call: Call) -> list[tuple[str, int]]:
    return [(frame["file"], frame["line"]) for frame in call["threads"][0]["frames"]]


def _outputs(rank: Rank) -> list[tuple[str, str, str]]:
    """Return stream, path and the kernel's link to it of a rank's output files; the file itself is not touched, as its disk may not answer."""
    found = []
    for number, stream in STREAMS.items():
        with contextlib.suppress(OSError):
            link = f"/proc/{rank.seen.pid}/fd/{number}"
            path = os.readlink(link)
            if path.startswith("/") and not path.startswith(("/dev/", "/memfd:")):
                found.append((stream, path, link))
    return found


def _read_logs(jobs: Sequence[SurveyedJob], after: Mapping[str, object]) -> list[Result]:
    """Return the new part of the ranks' output files; ranks of a job may share one."""
    files: dict[tuple[str, str], Result] = {}
    for job in jobs:
        for number, rank in job.ranks.items():
            for stream, path, link in _outputs(rank):
                new = {"key": job.key, "path": path, "stream": stream, "ranks": [], "link": link}
                one = files.setdefault((job.key, path), new)
                if number not in one["ranks"]:
                    one["ranks"].append(number)
    return [_read_log(one, after.get(one["path"])) for one in list(files.values())[:MAX_LOGS]]


def _read_log(one: Result, since: object) -> Result:
    """Return whole lines of a regular file from byte ``since``, or its end, without escapes."""
    link, text, begin, inode = one.pop("link"), b"", 0, 0
    with contextlib.suppress(OSError):
        about = os.stat(link)
        inode = about.st_ino
        if stat.S_ISREG(about.st_mode):
            with open(link, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                begin = max(0, size - FIRST_LOG_BYTES)
                if isinstance(since, int) and 0 <= since <= size:
                    begin = since
                text = os.pread(file.fileno(), min(size - begin, MAX_LOG_TEXT), begin)
    whole = text.rfind(b"\n") + 1 or len(text)
    plain = _ESCAPES.sub("", text[:whole].decode("utf-8", "replace"))
    shown = "".join(letter for letter in plain if letter.isprintable() or letter in "\n\t")
    return {**one, "inode": inode, "next": begin + whole, "output": shown}


def _sockets(pid: int) -> set[str]:
    return {path[8:-1] for path in open_files(pid) if path.startswith("socket:[")}


def endpoint_of(pids: Sequence[int]) -> str:
    """Return the address to which all of ``pids`` have a connection, as they have to the store they meet at.

    Of several the one with the lowest port: a store's is chosen, those of the ranks themselves are the kernel's.
    """
    common: set[str] | None = None
    for pid in pids:
        peers = {peer for _, peer in facts.connections_of(pid, _sockets(pid))}
        common = peers if common is None else common & peers
    known = [each for each in common or () if not each.endswith(":0")]
    return min(known, key=lambda each: int(each.rpartition(":")[2]), default="")


def listens(job: SurveyedJob) -> bool:
    """Return True if a rank of a job listens at the address of its world's rendezvous."""
    port = job.endpoint.rpartition(":")[2]
    for rank in job.ranks.values():
        pid = rank.seen.pid
        for own, peer in facts.connections_of(pid, _sockets(pid)):
            if port and own.endswith(f":{port}") and peer.endswith(":0"):
                return True
    return False
