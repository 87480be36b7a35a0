"""What Slurm says of a job, and what is started below it; no Slurm is asked."""

import subprocess

import pytest

from distconsole.errors import PlanError
from distconsole.launch.choose import decide
from distconsole.launch.engines import Engines, MpiBuild
from distconsole.launch.place import PreparedLaunch, make_plan
from distconsole.launch.plan import NodeFacts, Plan
from distconsole.launch.slurm.srun import (
    Allocation,
    JobState,
    fit_hosts,
    inside,
    note_outside,
    read_job,
    step_command,
)
from distconsole.launch.slurm.submit import split_container_words, submit_command
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import LauncherName, Run
from suite.programs import run_to_end

RUNNING = (
    "JobId=3 JobName=train-1121-a1 UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) "
    "Requeue=1 Restarts=2 BatchFlag=1 "
    "Partition=all NodeList=gpu[01-02] BatchHost=gpu01 NumNodes=2 NumCPUs=10 NumTasks=2 "
    "CPUs/Task=1 ReqB:S:C:T=0:0:*:* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=gpu:a100:6   "
    "Nodes=gpu01 CPU_IDs=0-3,8 Mem=0 GRES=gpu:a100:4(IDX:0-3)   "
    "Nodes=gpu02 CPU_IDs=0-4 Mem=0 GRES=gpu:a100:2(IDX:0,3),shard:1   MinCPUsNode=1"
)
PENDING = (
    "JobId=4 JobName=x JobState=PENDING Reason=Resources NodeList= NumNodes=2-2 NumTasks=2 "
    "NtasksPerN:B:S:C=0:0:*:*"
)
JOB = Allocation("12")


def test_a_running_job_says_what_it_has_of_each_node() -> None:
    job = read_job(RUNNING)
    assert (job.state, job.reason, job.nodes) == ("RUNNING", "", ("gpu01", "gpu02"))
    assert (job.cpus, job.gpus) == ({"gpu01": 5, "gpu02": 5}, {"gpu01": 4, "gpu02": 2})
    assert (job.tasks_a_node, job.restarts) == (None, 2)


def test_the_host_of_the_jobs_script_comes_first() -> None:
    for host, nodes in (("gpu02", ("gpu02", "gpu01")), ("login", ("gpu01", "gpu02"))):
        assert read_job(RUNNING.replace("BatchHost=gpu01", f"BatchHost={host}")).nodes == nodes


def test_a_waiting_job_says_why() -> None:
    assert read_job(PENDING) == JobState("PENDING", "Resources")


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        (RUNNING.replace("NtasksPerN:B:S:C=0", "NtasksPerN:B:S:C=4"), 4),
        (RUNNING.replace("NumTasks=2", "NumTasks=8"), 4),
    ],
)
def test_the_tasks_that_a_job_asked_for_are_its_ranks(text: str, tasks: int) -> None:
    assert read_job(text).tasks_a_node == tasks


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error"])
def test_a_job_that_cannot_be_planned_with_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        read_job(text)


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Host(HostName(name)) for name in names))


def facts(*names: str, family: str = "Open MPI") -> dict[HostName, NodeFacts]:
    return {
        HostName(name): NodeFacts(
            python="/usr/bin/python3",
            cpus=64,
            gpus=8,
            interfaces=(Interface("eth0", f"10.0.0.{index + 1}", 24, True, False),),
            boot_id=name,
            engines=Engines(("mpi",), mpi=MpiBuild(family, "4.1.4")),
        )
        for index, name in enumerate(names)
    }


def test_hosts_come_in_slurms_order_with_what_the_job_may_use() -> None:
    names = ("gpu02", "gpu01")
    placed, fitting = fit_hosts(cluster(*names), facts(*names), read_job(RUNNING), Run("t.py"))
    assert [host.name for host in placed.hosts] == ["gpu01", "gpu02"]
    gpu02 = fitting[HostName("gpu02")]
    assert (gpu02.cpus, gpu02.gpus) == (5, 2)


def test_uneven_tasks_are_refused_only_if_nothing_else_says_how_many_ranks_a_host_has() -> None:
    told = facts("gpu01", "gpu02")
    job = read_job(RUNNING.replace("NumTasks=2", "NumTasks=3"))
    with pytest.raises(PlanError, match="tasks do not spread evenly over its 2 nodes"):
        fit_hosts(cluster(*told), told, job, Run("t.py"))
    fit_hosts(cluster(*told), told, job, Run("t.py", nproc="1"))
    fit_hosts(Cluster(tuple(Host(name, slots=2) for name in told)), told, job, Run("t.py"))


IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.mark.parametrize(
    ("environ", "names", "job", "outside"),
    [
        (IN_JOB, ("n1", "n3"), "7", ""),
        (IN_JOB, ("n1", "n4"), None, "n4 is no node of Slurm job 7: all ranks start by ssh"),
        (IN_JOB, ("n5", "n4"), None, "n5, n4 are no nodes of Slurm job 7"),
        ({**IN_JOB, "SLURM_JOB_NODELIST_HET_GROUP_1": "n4"}, ("n1", "n4"), None, ""),
        ({"SLURM_JOB_ID": "7"}, ("n1",), None, ""),
        ({}, ("n1",), None, ""),
    ],
)
def test_only_nodes_of_our_allocation_are_inside_it(
    environ: dict[str, str], names: tuple[str, ...], job: str | None, outside: str
) -> None:
    found = inside(environ, cluster(*names))
    assert (found.job if found is not None else None) == job
    noted = "".join(note_outside(environ, cluster(*names)))
    assert noted[: len(outside) or None] == outside


def test_each_node_starts_its_own_shim_and_no_other() -> None:
    same = step_command("3", "run-1", ["a", "b"], [["py", "agent"], ["py", "agent"]])
    assert same[-1] == "exec py agent"
    script = step_command("3", "run-1", ["a", "b"], [["echo", "$(id); x"], ["echo", "b"]])[-1]
    for node, told in (("a", "$(id); x"), ("b", "b"), ("c", "")):
        done = run_to_end(
            ["/bin/sh", "-c", script],
            env={"SLURMD_NODENAME": node, "PATH": "/bin:/usr/bin"},
            check=True,
        )
        assert done.stdout.strip() == told


def plan(
    request: Run,
    traits: ScriptTraits,
    allocation: Allocation | None = JOB,
    family: str = "Open MPI",
) -> Plan:
    names = ("n1", "n2")
    return make_plan(
        PreparedLaunch(
            request,
            {"SLURM_LOCALID": "given"},
            traits,
            cluster=cluster(*names),
            facts=facts(*names, family=family),
            allocation=allocation,
        ),
        RunId("train-1-a"),
        "/work",
    )


READABLE = ScriptTraits(readable=True, torch=True)


def test_a_rank_has_the_variables_of_a_task_of_srun() -> None:
    made = plan(Run("t.py", nproc="2"), READABLE)
    assert (made.launcher, made.slurm_job, made.slurm_held) == ("slurm", "12", False)
    second = made.nodes[1]
    assert second.env["SLURM_NTASKS"] == second.env["WORLD_SIZE"] == "4"
    assert second.env["SLURM_STEP_TASKS_PER_NODE"] == "2,2"
    assert (second.env["SLURM_NODEID"], second.env["SLURM_GTIDS"]) == ("1", "2,3")
    assert [rank.env["SLURM_PROCID"] for rank in second.ranks] == ["2", "3"]
    assert second.env["SLURM_LOCALID"] == "given"
    assert all("SLURM_LOCALID" not in rank.env for rank in second.ranks)
    assert "SLURM_TASK_PID" in second.unset


def test_a_script_that_spawns_its_ranks_is_one_task_a_node() -> None:
    made = plan(Run("t.py", nproc="8"), ScriptTraits(readable=True, torch=True, spawns=True))
    assert [len(node.ranks) for node in made.nodes] == [1, 1]
    assert [node.ranks[0].env["SLURM_PROCID"] for node in made.nodes] == ["0", "1"]
    assert made.nodes[0].env["SLURM_NTASKS"] == "2"
    assert not made.engine_ranks


@pytest.mark.parametrize(
    "given", [("--init-method", "file:///shared/store"), ("--init-method=file:///shared/store",)]
)
def test_a_rendezvous_that_the_user_gives_stands(given: tuple[str, ...]) -> None:
    declared = {"init_method": "--init-method", "rank": "--rank", "world_size": "--world-size"}
    traits = ScriptTraits(readable=True, torch=True, **declared)  # type: ignore[arg-type]
    made = plan(Run("t.py", given, nproc="1"), traits)
    words = made.nodes[1].ranks[0].argv[2:]
    assert words == ("--rank", "1", "--world-size", "2", *given)


def test_auto_means_slurm_only_where_there_is_a_job() -> None:
    choice = decide(Run("t.py"), READABLE, {})
    assert choice.launcher is LauncherName.TORCH
    below = decide(Run("t.py"), READABLE, {}, {}, JOB.job)
    assert below.launcher is LauncherName.SLURM
    assert below.why.endswith("by srun, in Slurm job 12")
    with pytest.raises(PlanError, match="needs a Slurm job"):
        plan(Run("t.py", launcher=LauncherName.SLURM), READABLE, None)


@pytest.mark.parametrize(
    ("asked", "launcher", "processes"),
    [
        (LauncherName.TORCH, "slurm", [2, 2]),
        (LauncherName.SINGLE, "slurm", [1, 1]),
        (LauncherName.HOROVOD, "horovod", [2, 2]),
        (LauncherName.TORCHRUN, "torchrun", [1, 1]),
        (LauncherName.MPI, "mpi", [1, 0]),
    ],
)
def test_the_launcher_says_what_the_shims_of_a_job_start(
    asked: LauncherName, launcher: str, processes: list[int]
) -> None:
    made = plan(Run("t.py", nproc="2", launcher=asked), READABLE)
    assert (made.launcher, made.slurm_job) == (launcher, "12")
    assert made.why == "asked for; by srun, in Slurm job 12"
    assert [len(node.ranks) for node in made.nodes] == processes
    assert made.specs("00", 0.0)[1]["below_slurm"] is True


def test_horovods_ranks_have_the_variables_of_a_task_too() -> None:
    made = plan(Run("t.py", nproc="2", launcher=LauncherName.HOROVOD), READABLE)
    last = made.nodes[1].ranks[1].env
    assert (last["HOROVOD_RANK"], last["SLURM_PROCID"]) == ("3", "3")
    assert made.nodes[1].env["SLURM_NTASKS"] == made.nodes[1].env["HOROVOD_SIZE"] == "4"


@pytest.mark.parametrize("family", ["Open MPI", "MPICH"])
def test_mpirun_knows_of_no_job_and_its_ranks_do(family: str) -> None:
    made = plan(Run("t.py", nproc="2", launcher=LauncherName.MPI), READABLE, family=family)
    first = made.nodes[0]
    assert {"SLURM_JOB_ID", "SLURM_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"} <= set(first.unset)
    assert not any(name.startswith("SLURM_") for name in first.env if name != "SLURM_LOCALID")
    argv = first.ranks[0].argv
    script = argv[argv.index("-c") + 1]
    names = "JOB_ID JOB_NODELIST NNODES NTASKS PROCID LOCALID NODEID"
    shown = subprocess.run(
        ["sh", "-c", script, "sh", "sh", "-c", f"echo {' '.join('$SLURM_' + n for n in names.split())}"],
        env={"PATH": "/bin:/usr/bin", "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1",
             "GROUP_RANK": "1", "SLURM_LOCALID": "given"},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert shown.stdout.split() == ["12", "n1,n2", "2", "4", "3", "given", "1"]
    # Open MPI lets signals in to its ranks by itself.
    assert ("pthread_sigmask" in " ".join(argv)) == (family == "MPICH")


def test_slurm_procid_without_slurm_is_said_as_it_is() -> None:
    choice = decide(Run("t.py"), ScriptTraits(readable=True, slurm=True), {})
    assert choice.launcher is LauncherName.TORCH
    assert "this is no Slurm job" in choice.why


def test_elastic_ranks_are_not_elastic_in_a_job_and_it_is_said() -> None:
    traits = ScriptTraits(readable=True, horovod=True, elastic=True)
    below = decide(Run("t.py"), traits, {}, {}, JOB.job)
    assert (decide(Run("t.py"), traits, {}).elastic, below.elastic) == (True, False)
    assert below.why.endswith("in Slurm job 12; not elastic there")


def test_the_options_of_pyxis_go_to_the_step_with_the_folders_that_a_shim_needs() -> None:
    words = [
        "-N2",
        "--container-image",
        "img#a",
        "--container-mounts=/d:/d",
        "--container-writable",
        "--time",
        "5",
    ]
    others, containers = split_container_words(words)
    assert others == ["-N2", "--time", "5"]
    assert submit_command(" ".join(words), "r")[6:9] == ["-N2", "--time", "5"]
    shim = ["py", "/h/.cache/distconsole/agent-1.pyz", "shim", "--run", "/tmp/d-7/runs/r-1"]
    step = step_command("3", "r-1", ["a"], [shim], containers)
    assert [word for word in step if word.startswith("--container")] == [
        "--container-image=img#a",
        "--container-writable",
        "--container-mounts=/d:/d,/h/.cache/distconsole:/h/.cache/distconsole,/tmp/d-7:/tmp/d-7",
    ]
    assert not any(
        word.startswith("--container") for word in step_command("3", "r", ["a"], [shim])
    )
