"""Probes of one node, on this machine for real, and their parsers by cases.
Several things looked at at once: in order, so many at a time, and the first error is the caller's.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil
import pytest

from distconsole_agent import probes
from distconsole_agent.contract.protocol import MAX_LINE_BYTES, ErrorCode
from distconsole_agent.probes import arguments, programs
from distconsole_agent.probes.at_once import look_at_once
from distconsole_agent.probes.programs import run_program
from distconsole_agent.probes.scripts import Interpreter, run_script
from distconsole_agent.probes.software import engines
from distconsole_agent.probes.standalone import inspect_python
from fakes import nvml
from suite.check_cases import cases_of_facts


@pytest.mark.parametrize(
    "case", cases_of_facts("mpi_version"), ids=lambda case: str(case["facts"])
)
def test_the_version_of_an_mpi_is_read_from_its_banner(case: dict[str, Any]) -> None:
    assert list(engines.parse_version(case["output"])) == case["facts"]


@pytest.mark.parametrize(
    "case", cases_of_facts("torch_version"), ids=lambda case: case["facts"]["version"]
)
def test_torch_is_read_from_its_version_file(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(case["output"])
    monkeypatch.setattr(inspect_python, "package_folder", lambda name: str(tmp_path / name))

    facts = inspect_python.torch_facts({"nvidia-nccl-cu12": "2.27.5"})

    assert facts["nccl"] == "2.27.5"
    assert {name: facts[name] for name in case["facts"]} == case["facts"]


@pytest.mark.parametrize(
    ("group", "args"),
    [
        ("no.such", {}),
        ("net.listen", {"address": 5, "secret": "ab" * 32}),
        ("net.listen", {"address": "127.0.0.1", "secret": "short"}),
        ("net.connect", {"secret": "ab" * 32, "targets": [5]}),
        ("coll", {"ranks": [7], "world_size": 2}),
        ("port", {"ports": "29500"}),
        ("many", {"probes": [5]}),
    ],
)
def test_a_group_that_is_not_there_and_arguments_that_mean_nothing_are_refused(
    group: str, args: dict[str, Any]
) -> None:
    with pytest.raises(probes.ProbeError) as raised:
        probes.run(group, args, 1.0)
    assert raised.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("group", sorted(probes._GROUPS))
def test_every_argument_of_a_probe_can_be_read(group: str) -> None:
    probe = probes._GROUPS[group]
    names = (probe.__kwdefaults__ or {}).keys() | probe.__annotations__.keys() - {"return"}
    first = probe.__code__.co_varnames[0]
    assert {probe.__annotations__[name] for name in names - {first}} <= arguments._READERS.keys()


def test_the_machine_says_who_it_is_and_what_may_be_used_of_it() -> None:
    facts = probes.run("os", {"paths": ["/nowhere/at/all"]}, 5.0)
    assert facts["hostname"] == socket.gethostname()
    assert facts["uid"] == os.getuid()
    assert facts["filesystems"]["/dev/shm"]["total"] > 0
    assert facts["filesystems"]["/nowhere/at/all"]["error"] == "No such file or directory"
    assert facts["resolution"]["addresses"] or facts["resolution"]["error"]
    assert facts["limits"]["nofile"][0] >= 256
    assert facts["memory"]["total"] >= facts["memory"]["available"] > 0
    assert facts["temporary"] in facts["filesystems"]
    assert facts["sysctl"]["somaxconn"].isdigit()


def test_facts_fit_into_one_line_of_the_wire() -> None:
    asked = [{"name": name, "group": name} for name in ("os", "python_env", "mpi", "net")]
    answer = probes.run("many", {"probes": asked}, 20.0)
    assert len(json.dumps(answer)) < MAX_LINE_BYTES / 8
    assert all("facts" in entry for entry in answer["answers"].values()), answer


def test_one_probe_that_fails_or_hangs_costs_the_others_nothing() -> None:
    asked = [
        {"name": "bad", "group": "no.such"},
        {"name": "slow", "group": "python_env", "args": {"setup": "sleep 60"}, "seconds": 0.3},
        {"name": "net", "group": "net"},
    ]
    began = time.monotonic()
    answers = probes.run("many", {"probes": asked}, 10.0)["answers"]
    assert time.monotonic() - began < 8
    assert answers["bad"]["error"]["code"] == ErrorCode.BAD_REQUEST
    assert answers["slow"]["error"]["code"] == ErrorCode.TIMED_OUT
    assert answers["net"]["facts"]["addresses"]


def left_alive(mark: str) -> list[psutil.Process]:
    """Return the processes with ``mark`` among their arguments that outlive being killed."""
    found = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    return [p for p in psutil.wait_procs(found, timeout=10)[1] if p.is_running()]


def test_a_program_is_killed_at_its_deadline_with_its_children_and_a_flood_is_bounded() -> None:
    mark = f"36{os.getpid()}"
    ended = run_program(["sh", "-c", f"sleep {mark} & sleep {mark}; true"], 0.3)
    assert ended.exit_code is None
    assert left_alive(mark) == []
    ended = run_program(["head", "-c", "8000000", "/dev/zero"], 20.0)
    assert ended.exit_code == 0
    assert len(ended.out) <= 1024 * 1024


def test_what_a_program_leaves_behind_holding_its_streams_does_not_hold_us() -> None:
    mark = f"37{os.getpid()}"
    began = time.monotonic()
    ended = run_program(["sh", "-c", f"echo out; sleep {mark} & exit 3"], 20.0)
    assert (ended.exit_code, ended.out) == (3, "out\n")
    assert time.monotonic() - began < 10
    assert left_alive(mark) == []


def test_what_a_program_writes_last_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_its_end(pid: int) -> bool:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return True

    monkeypatch.setattr(programs, "_has_ended", after_its_end)
    ended = run_program(["sh", "-c", "sleep 0.4; echo last"], 20.0)
    assert (ended.exit_code, ended.out) == (0, "last\n")


def test_a_script_is_in_no_command_line_and_runs_after_setup_whatever_that_prints() -> None:
    source = "import os; print(open('/proc/self/cmdline').read().count('secretword'), os.environ['PROBED'])"
    setup = Interpreter(setup="echo noise; export PROBED=yes")
    ended = run_script(source + " # secretword", 10.0, setup)
    assert ended.out.splitlines() == ["noise", "0 yes"]


def test_packages_are_told_by_the_names_of_their_metadata(tmp_path: Path) -> None:
    for name in ("torch-2.13.0+cpu.dist-info", "PyYAML-6.0.egg-info", "a_b-1.0-py3.11.egg-info"):
        (tmp_path / name).mkdir()
    found = [("PyYAML", "6.0"), ("a_b", "1.0"), ("torch", "2.13.0+cpu")]
    assert list(inspect_python.distributions(str(tmp_path))) == found
    (tmp_path / "plain.egg-info").mkdir()
    (tmp_path / "plain.egg-info/PKG-INFO").write_text("Name: plain\nVersion: 3\n\n")
    assert ("plain", "3") in list(inspect_python.distributions(str(tmp_path)))
    assert list(inspect_python.distributions(str(tmp_path / "not-there"))) == []


def test_python_is_looked_at_without_importing_torch() -> None:
    facts = probes.run("python_env", {"setup": "echo noise; export NCCL_DEBUG=INFO"}, 20.0)
    assert facts["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" in facts["python"]["packages"]
    assert facts["env"]["variables"]["NCCL_DEBUG"] == "INFO"
    assert isinstance(facts["torch"]["present"], bool)


def test_probes_look_at_the_session_that_asks() -> None:
    asked = [{"name": "it", "group": "python_env"}]
    for level in ("WARN", "INFO"):
        environment = {**os.environ, "NCCL_DEBUG": level, "PATH": f"/of/{level}:/usr/bin:/bin"}
        answers = probes.run("many", {"probes": asked}, 20.0, environment)["answers"]
        assert answers["it"]["facts"]["env"]["variables"]["NCCL_DEBUG"] == level


def test_the_file_of_nccl_that_a_variable_names_stands_in_place_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, named = tmp_path / ".nccl.conf", tmp_path / "named.conf"
    users.write_text("# all nodes\nNCCL_DEBUG=WARN\n")
    named.write_text("NCCL_DEBUG=INFO\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, path, line in (("", "~/.nccl.conf", "WARN"), (str(named), str(named), "INFO")):
        monkeypatch.setenv("NCCL_CONF_FILE", given)
        files = probes.run("python_env", {}, 20.0)["env"]["files"]
        assert {name: files[name] for name in files if not name.startswith("/etc/")} == {
            path: [f"NCCL_DEBUG={line}"]
        }


def test_variables_that_look_secret_stay_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hush")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    variables = probes.run("python_env", {}, 20.0)["env"]["variables"]
    assert "NCCL_DEBUG" in variables
    assert "HOROVOD_SECRET_KEY" not in variables


def test_an_interpreter_that_is_not_there_is_a_probe_that_failed() -> None:
    with pytest.raises(probes.ProbeError, match="cannot be started") as raised:
        probes.run("python_env", {"python": "/no/such/python"}, 5.0)
    assert raised.value.code == ErrorCode.PROBE_FAILED


@pytest.mark.horovod
def test_horovod_says_what_is_in_it_without_being_imported() -> None:
    facts = probes.run("python_env", {"load": True}, 60.0)["horovod"]
    assert facts["present"]
    assert facts["load_error"] == ""
    assert facts["built"]["gloo"] or facts["built"]["mpi"]
    assert facts["against"]["pytorch"]


@pytest.mark.mpi
def test_mpi_is_found_where_the_shell_finds_it() -> None:
    facts = probes.run("mpi", {"setup": "export PATH=/usr/bin:$PATH"}, 20.0)
    assert facts["present"]
    assert facts["version"][0].isdigit()


def test_a_node_without_mpi_says_so() -> None:
    assert probes.run("mpi", {"setup": "export PATH=/nowhere"}, 10.0) == {"present": False}


def test_a_held_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        state = probes.run("port", {"ports": [port]}, 5.0)["ports"][str(port)]
    assert (state["free"], state["why"]) == (False, "in use")
    assert state["holder"]["pid"] == os.getpid()
    assert probes.run("port", {"ports": [port]}, 5.0)["ports"][str(port)]["free"]


def test_the_way_to_a_peer_is_asked_of_the_kernel() -> None:
    facts = probes.run("net", {"peers": ["127.0.0.1", "not an address"]}, 5.0)
    assert facts["routes"] == {"127.0.0.1": "127.0.0.1", "not an address": None}
    assert any(entry["loopback"] for entry in facts["addresses"])


def test_a_node_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    assert probes.run("gpu", {}, 20.0)["present"] is False


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvml.FakeNvml]:
    if nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in NVML")
    fake = nvml.FakeNvml(tmp_path / "control")
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.close()


def test_gpus_are_listed_through_pynvml(gpus: nvml.FakeNvml) -> None:
    facts = probes.run("gpu", {}, 20.0)
    assert facts["present"]
    assert facts["count"] == len(facts["gpus"]) == 8
    assert facts["gpus"][0]["uuid"]
    gpus.lose(3)
    assert probes.run("gpu", {}, 20.0)["count"] == 8


def test_a_driver_that_hangs_does_not_hang_the_agent(gpus: nvml.FakeNvml) -> None:
    gpus.hang("nvmlDeviceGetMemoryInfo_v2")
    with pytest.raises(probes.ProbeError, match="did not answer") as raised:
        probes.run("gpu", {}, 1.5)
    assert raised.value.code == ErrorCode.TIMED_OUT


def test_the_health_of_gpus_is_asked_of_nvml_and_only_when_wanted(gpus: nvml.FakeNvml) -> None:
    gpus.set_throttle(3, 0x48)
    gpus.set_throttle(4, 0x08, once=True)  # as with a change of clocks
    gpus.set_ecc(5, 2)
    gpus.set(6, "GPU_SRAM_ERRORS", 7)
    gpus.set(7, "GPU_POWER_LIMIT_MW", 500_000)
    # As by a driver that is older than this.
    gpus.fail("nvmlDeviceGetRemappedRows", nvml.NOT_SUPPORTED)
    health = probes.run("gpu", {"health": True}, 20.0)["health"]
    assert [each["index"] for each in health] == list(range(8))
    assert [each["index"] for each in health if each["clock_reasons"]] == [3]
    assert [each["uncorrected"] for each in health] == [0, 0, 0, 0, 0, 2, 0, 0]
    assert all(each["temperature_c"] > 0 for each in health)
    assert [each["sram_uncorrected"] for each in health] == [0, 0, 0, 0, 0, 0, 7, 0]
    limits = {each["power_limit_mw"] for each in health[:7]}
    assert limits == {health[7]["power_default_mw"]} != {health[7]["power_limit_mw"]}
    assert all(each["remap_pending"] is None for each in health)
    assert probes.run("gpu", {}, 20.0)["health"] == []


WHOSE: ContextVar[str] = ContextVar("whose", default="nobody's")


def test_answers_come_in_the_order_of_what_was_asked_and_in_the_askers_context() -> None:
    WHOSE.set("the asker's")
    found = look_at_once(lambda number: (number, WHOSE.get()), range(100), 7)
    assert found == [(number, "the asker's") for number in range(100)]
    assert look_at_once(str, []) == []


def test_so_many_are_looked_at_at_a_time() -> None:
    together = threading.Barrier(4)
    look_at_once(lambda _: together.wait(10), range(4))  # breaks where they come one by one
    now, most, lock = 0, 0, threading.Lock()

    def look(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    look_at_once(look, range(50), 2)
    assert most <= 2


def test_what_one_raises_is_raised_and_the_rest_is_not_begun() -> None:
    looked: list[int] = []

    def look(number: int) -> None:
        looked.append(number)
        raise OSError(f"no {number}")

    with pytest.raises(OSError, match="no 0"):
        look_at_once(look, range(50), 1)
    assert looked == [0]
