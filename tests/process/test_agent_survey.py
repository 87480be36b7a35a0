"""``survey``: a real agent finds ranks that nobody prepared, and touches none of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distconsole.model.diagnosis.calls import Call
from distconsole.rpc.frames import JobPart, Survey
from distconsole_agent.system.procfs import sees_all_processes
from fakes import nvml as fake_nvml
from fakes.agents import AgentNode, Bridge
from fakes.shims import wait_until

SCRIPT = """
import signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, lambda got, _: print('signal', got, flush=True))
    except (OSError, ValueError):
        pass
print('\\x1b[31mup\\x1b[0m', flush=True)
while True:
    time.sleep(600)
"""


@contextmanager
def job(folder: Path, size: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ``size`` ranks as somebody does by hand, each with a log of its own, and wait until they are up."""
    script = folder / "by_hand.py"
    script.write_text(SCRIPT)
    told = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    started = []
    for rank in range(size):
        with (folder / f"{rank}.log").open("wb") as log:
            env = {**os.environ, **told, "RANK": str(rank), "SECRET_TOKEN": "hunter2"}
            argv = [sys.executable, str(script)]
            started.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
    try:
        logs = [folder / f"{rank}.log" for rank in range(size)]
        wait_until("up", lambda: all("up" in log.read_text() for log in logs))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def survey(bridge: Bridge, **more: Any) -> dict[str, Any]:
    told = bridge.done("survey", **more)
    msgspec.convert(told, Survey)
    return told


def of(told: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in told["jobs"] if each["endpoint"] == f"127.0.0.1:{os.getpid()}"]
    return dict(found)


def test_unprepared_ranks_are_found_without_a_signal(bridge: Bridge, tmp_path: Path) -> None:
    with job(tmp_path, 2) as ranks:
        ranks[1].send_signal(signal.SIGSTOP)
        wait_until("stopped", lambda: of(survey(bridge))["ranks"][1]["state"] == "T")
        told = survey(bridge, logs={})
        found = of(told)
        assert (found["launcher"], found["script"], found["size"]) == ("by hand", "by_hand.py", 2)
        assert set(found) == set(JobPart.__struct_fields__)
        first, second = found["ranks"]
        assert {key for call in found["ranks"] for key in call} <= set(Call.__struct_fields__)
        assert [first["pid"], second["pid"]] == [rank.pid for rank in ranks]
        assert (first["state"], second["waits_for"]["kind"]) == ("S", "stopped")
        assert first["silent_s"] is None or first["silent_s"] > 0
        assert first["way"] in ("py-spy", "python")
        assert "hunter2" not in repr(told)
        logs = {each["path"]: each for each in told["logs"]}
        log = logs[str(tmp_path / "0.log")]
        assert (log["output"], log["ranks"], log["stream"]) == ("up\n", [0], "out")
        again = survey(bridge, logs={log["path"]: log["next"]}, calls=False)
        assert [each["output"] for each in again["logs"] if each["path"] == log["path"]] == [""]
        assert (tmp_path / "0.log").read_text().count("\n") == 1


@pytest.mark.skipif(fake_nvml.compiler() is None, reason="no C compiler for the stand-in NVML")
@pytest.mark.skipif(not sees_all_processes(), reason="a container's pids are not the driver's")
def test_the_gpu_of_a_found_rank_has_its_use_and_power(node: AgentNode, tmp_path: Path) -> None:
    with fake_nvml.installed(tmp_path) as fake, job(tmp_path, 2) as ranks:
        fake.set_util(3, 70)
        fake.set_processes(3, [(ranks[1].pid, 1 << 20, 0, 0)])
        node.env.update(fake.environment())
        first, second = of(survey(node.bridge()))["ranks"]
    assert (second["gpu"]["index"], second["gpu"]["util"]) == (3, 70)
    assert second["gpu"]["power_w"] > 0
    assert first["gpu"] is None


def test_what_is_asked_in_a_way_that_means_nothing_is_refused(bridge: Bridge) -> None:
    assert bridge.refused("survey", logs=[]) == "bad_request"
    assert bridge.refused("survey", seconds="soon") == "bad_request"
