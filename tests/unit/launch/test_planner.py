"""The hosts of a job, against those that were named; their GPUs and slots; runs that are launched again."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.config.schema import Config
from distconsole.errors import PlanError, RunNotFoundError, UnreachableError
from distconsole.launch.plan import THREADS, NodeFacts
from distconsole.launch.planner import (
    collect_facts,
    connect_hosts,
    note_crowds,
    reach_hosts,
    read_launch,
    refuse_one_machine,
    visible_gpus,
)
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import EmitKind, Run
from distconsole.operations import perform
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, open_session
from fakes.journals import Journal
from fakes.sshd import end_processes_of

NAMED = Cluster(tuple(Host(HostName(name)) for name in "abc"))


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Run("t.py", nnodes="2"), "means 2 hosts, and there are 3"),
        (Run("t.py", nnodes="2:4"), "means 4 hosts, and there are 3"),
        (Run("t.py", nnodes="2:3", emit=EmitKind.TORCHRUN), "fixed number"),
        (Run("t.py", nnodes="2:3", verify_sync=5), "equal steps"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_host_is_asked(
    request_: Run, told: str
) -> None:
    with Session(Config(), NAMED) as session, pytest.raises(PlanError, match=told):
        next(connect_hosts(session, NAMED, request_))


def test_too_few_hosts_are_named_with_why() -> None:
    deaf = Cluster(tuple(Host(HostName(f"{name}.invalid")) for name in "abc"))
    fewer = replace(deaf, hosts=deaf.hosts[:2])
    with Session(Config(), deaf) as session, pytest.raises(UnreachableError) as caught:
        list(connect_hosts(session, fewer, Run("t.py", nnodes="2:3")))
    assert caught.value.message.startswith(
        "2 of 2 hosts cannot be reached, and --nnodes 2:3 needs 2: a.invalid: "
    )


def test_a_fixed_number_counts_without_hosts_that_are_excluded() -> None:
    fewer = replace(NAMED, hosts=NAMED.hosts[:2])
    with Session(Config(), NAMED) as session, pytest.raises(PlanError, match="there are 2"):
        next(connect_hosts(session, fewer, Run("t.py", nnodes="3")))


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a3f, GPU-91bc"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_gpus_that_a_variable_hides_get_no_rank(
    env: dict[str, str], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = NAMED.hosts[0], Host(HostName("here"), local=True)
    assert visible_gpus(there, env) == visible_gpus(here, env) == count
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (visible_gpus(there, {}), visible_gpus(here, {})) == (None, count)


def test_two_names_of_one_machine_are_refused_and_two_agents_on_it_are_not(tmp_path: Path) -> None:
    def agent(name: str, folder: str) -> Host:
        return Host(HostName(name), local=True, node_dir=str(tmp_path / folder))

    hosts = (agent("a", "one"), agent("b", "two"), agent("again", "one"))
    with Session(Config(), Cluster(hosts)) as session:
        links = [session.link(host.name) for host in hosts]
        refuse_one_machine(links[:2])
        with pytest.raises(PlanError, match="a and again are one machine") as caught:
            refuse_one_machine(links)
        assert "a:N" in caught.value.hint
    end_processes_of(tmp_path)


@pytest.mark.parametrize(
    ("slots", "cpus", "gpus", "warns"),
    [
        (22, 8, 0, True),
        (22, 16, 8, True),
        (22, 64, 0, False),
        (22, 8, 24, False),
        (16, 8, 0, False),
        (17, 8, 0, True),
        (None, 1, 0, False),
    ],
)
def test_far_more_slots_than_processors_are_a_port_perhaps(
    slots: int | None, cpus: int, gpus: int, warns: bool
) -> None:
    hosts = [Host(HostName("a"), slots=slots)]
    said = list(note_crowds(hosts, {hosts[0].name: NodeFacts("python3", cpus=cpus, gpus=gpus)}))
    port = f"a:{slots} asks for {slots} ranks on {cpus} processors; a port stands behind a slash: a/{slots}"
    assert said == [port] * warns


def test_this_machine_is_warned_of_far_too_many_slots_and_keeps_its_shells_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, "3")
    script = tmp_path / "t.py"
    script.write_text("pass\n")
    slots = 2 * (os.cpu_count() or 1) + 1
    host = Host(HostName("a"), local=True, node_dir=str(tmp_path / "node"), slots=slots)
    with Session(Config(), Cluster((host,))) as session:
        launch = read_launch(Run(str(script)))
        events = list(reach_hosts(launch, session))
        assert collect_facts(launch, session, session.cluster).env == {THREADS: "3"}
    warned = [each.text for each in events if each.severity is Severity.WARN]
    assert [f"a:{slots} asks for {slots} ranks" in text for text in warned] == [True]
    end_processes_of(tmp_path)


def test_what_a_demo_ran_cannot_run_again_and_what_to_do_is_said(cwd: Path) -> None:
    (cwd / "t.py").write_text("import torch")
    store, journal = RunStore(runs_dir()), Journal(seconds=3)
    journal.write(store)
    where = ask.Where(cluster="embedded", ssh_config=str(cwd / "gone"))
    request = msgspec.json.encode(ask.Run("t.py", where=where))
    with store.open(RunId(journal.run)) as run_file:
        run_file.write_record(replace(run_file.record(), where=where, request=request))
    with pytest.raises(RunNotFoundError, match="nodes of a demo, which have ended") as caught:
        list(perform(ask.Rerun("last"), open_session))
    assert "distconsole demo" in caught.value.hint
