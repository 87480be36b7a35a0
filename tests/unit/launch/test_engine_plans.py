"""What Horovod's ranks and mpirun are started with on each host, as values and as pasted text."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import PlanError
from distconsole.launch.engines import Engines, MpiBuild
from distconsole.launch.launchers.mpi import AS_RANK, TORCH_NAMES
from distconsole.launch.place import PreparedLaunch, make_plan
from distconsole.launch.plan import NodeFacts, Plan
from distconsole.launch.show import dry_run_text
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import LauncherName, Run
from suite.programs import run_to_end

A, B = Host(HostName("a"), slots=2), Host(HostName("user@b"), slots=1)
PYTHON = "/opt/venv/bin/python"


def facts(number: int, build: MpiBuild, uid: int = 1000) -> NodeFacts:
    interfaces = (Interface(f"eth{number}", f"10.0.0.{number + 1}", 24),)
    return NodeFacts(
        *(PYTHON, 8, 0, interfaces),
        boot_id=str(number),
        engines=Engines(("mpi",), mpi=build),
        uid=uid,
    )


def plan(
    launcher: LauncherName,
    *hosts: Host,
    build: MpiBuild = MpiBuild("Open MPI", "4.1.4"),  # noqa: B008 - frozen
    uid: int = 1000,
    env: dict[str, str] | None = None,
    elastic: bool = False,
    one_machine: bool = False,
    **asked: Any,
) -> Plan:
    hosts = hosts or (A, B)
    request = Run("train.py", ("--lr", "1"), launcher=launcher, **asked)
    known = {host.name: facts(i * (not one_machine), build, uid) for i, host in enumerate(hosts)}
    traits = ScriptTraits(readable=True, horovod=elastic, elastic=elastic)
    return make_plan(
        PreparedLaunch(request, env or {}, traits, cluster=Cluster(hosts), facts=known),
        RunId("train-0101-abc"),
        "/job",
    )


def test_horovods_ranks_have_its_launchers_variables_on_uneven_hosts() -> None:
    made = plan(LauncherName.HOROVOD)
    first, second = made.nodes
    assert (made.world_size, made.engine_ranks) == (3, True)
    own = [[rank.env[f"HOROVOD_{name}"] for name in ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE")]
           for node in made.nodes for rank in node.ranks]  # fmt: skip
    assert own == [["0", "0", "0", "2"], ["1", "1", "0", "1"], ["2", "0", "1", "2"]]
    shared = {name: value for name, value in first.env.items() if name.startswith("HOROVOD_")}
    assert shared == {
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_HOSTNAME": "0-a",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "{port}",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
        "HOROVOD_GLOO_IFACE": "eth0",
    }
    assert second.env["HOROVOD_GLOO_IFACE"] == "eth1"
    assert second.env["HOROVOD_HOSTNAME"] == "1-user-b"
    assert {"RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_ELASTIC"} <= set(second.unset)
    assert second.ranks[0].argv == (PYTHON, "/job/train.py", "--lr", "1")


def test_a_person_starts_horovods_rendezvous_on_the_first_host_only() -> None:
    first, second = plan(LauncherName.HOROVOD).nodes
    code = shlex.split(first.beside)[2]
    scopes = "{'global': 3, 'local_0-a': 2, 'cross_0': 2, 'cross_1': 1, 'local_1-user-b': 1}"
    assert scopes in code
    assert second.beside == ""
    text = dry_run_text(plan(LauncherName.HOROVOD))
    assert "('10.0.0.1', 29500)" in text.replace("'\"'\"'", "'")
    assert "wait $ranks; kill $beside" in text


def test_elastic_ranks_are_horovods_and_a_driver_on_the_first_host_starts_them() -> None:
    made, plain = plan(LauncherName.HOROVOD, elastic=True), plan(LauncherName.HOROVOD)
    assert (made.engine_ranks, made.min_nodes, plain.min_nodes) == (True, 1, None)
    assert made.nodes[0].driver == (PYTHON, "{agent}", "elastic-driver")
    assert (made.nodes[1].driver, plain.nodes[0].driver) == ((), ())
    for node, other in zip(made.nodes, plain.nodes, strict=True):
        assert node.ranks == other.ranks
        timeout = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}
        assert node.env == {**other.env, **timeout, "HOROVOD_ELASTIC": "1"}
        assert "HOROVOD_ELASTIC" not in node.unset
    for index in range(2):
        assert made.specs("00", 0.0)[index]["driver"] == [PYTHON, "{agent}", "elastic-driver"]
        assert plain.specs("00", 0.0)[index]["driver"] == []
    own = plan(LauncherName.HOROVOD, elastic=True, env={"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"})
    assert own.nodes[1].env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "5"


@pytest.mark.parametrize(
    ("nnodes", "fewest", "restarts"), [(None, 1, 2), ("2", 2, 2), ("1:2", 1, 0)]
)
def test_the_fewest_hosts_of_an_elastic_job(
    nnodes: str | None, fewest: int, restarts: int
) -> None:
    made = plan(LauncherName.HOROVOD, elastic=True, nnodes=nnodes, max_restarts=2)
    assert (made.min_nodes, made.max_restarts) == (fewest, restarts)
    assert f"while {'one host is' if fewest == 1 else '2 hosts are'} left" in made.notes[0]


def test_more_elastic_ranks_than_can_begin_anew_are_refused_with_a_way_out() -> None:
    many = Host(HostName("a"), slots=401)
    with pytest.raises(PlanError, match="401 elastic ranks are more than 400") as caught:
        plan(LauncherName.HOROVOD, many, elastic=True)
    assert "HOROVOD_ELASTIC=0" in caught.value.hint
    told = plan(LauncherName.HOROVOD, many, elastic=True, env={"HOROVOD_ELASTIC": "0"})
    assert (told.world_size, told.nodes[0].driver) == (401, ())


def test_a_plan_of_elastic_ranks_says_who_starts_them() -> None:
    made = plan(LauncherName.HOROVOD, elastic=True)
    (note,) = made.notes
    assert "Horovod's own driver on a says which ranks are started" in note
    assert "while one host is left" in note
    driver = f"{PYTHON} distconsole-agent elastic-driver"
    assert dry_run_text(made).count(f"which they lack here: {driver}") == 1
    first, second = made.event(0.0).hosts
    assert first.command == f"{driver}\n{PYTHON} /job/train.py --lr 1"
    assert second.command == f"{PYTHON} /job/train.py --lr 1"


def test_mpirun_is_on_the_first_host_and_reaches_the_others_through_us() -> None:
    made = plan(LauncherName.MPI)
    first, second = made.nodes
    assert (made.world_size, made.engine_ranks, made.notes) == (3, False, ())
    (mpirun,) = first.ranks
    assert mpirun.argv == (
        *("mpirun", "--host", "127.0.0.1:2,10.0.0.2:1", "-np", "3", "--map-by", "slot"),
        *("--bind-to", "none", "--leave-session-attached"),
        *("sh", "-c", AS_RANK, "sh", PYTHON, "/job/train.py", "--lr", "1"),
    )
    assert (second.ranks, second.world_ranks) == ((), (2,))
    for node, nic in ((first, "eth0"), (second, "eth1")):
        assert node.env["OMPI_MCA_plm_rsh_agent"] == "{run_dir}/remote"
        assert node.env["PRTE_MCA_plm_ssh_agent"] == "{run_dir}/remote"
        assert node.env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/24"
        assert node.env["GLOO_SOCKET_IFNAME"] == nic
        assert (node.env["MASTER_ADDR"], node.env["MASTER_PORT"]) == ("10.0.0.1", "{port}")
        assert {"SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "RANK"} <= set(node.unset)


def test_root_gives_its_consent_and_it_is_said() -> None:
    made = plan(LauncherName.MPI, uid=0)
    assert made.nodes[1].env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert made.notes[0].startswith("root on a, user@b: OMPI_ALLOW_RUN_AS_ROOT=1")
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in plan(LauncherName.MPI).nodes[0].env


@pytest.mark.parametrize(
    ("family", "hosts"),
    [
        ("MPICH", ("10.0.0.1:2,10.0.0.2:1",)),
        ("Intel MPI", ("10.0.0.1,10.0.0.1,10.0.0.2", "-ppn", "1")),
    ],
)
def test_the_mpich_family_has_words_of_its_own(family: str, hosts: tuple[str, ...]) -> None:
    made = plan(LauncherName.MPI, build=MpiBuild(family, "4.1"), uid=0)
    argv = made.nodes[0].ranks[0].argv
    expected = (
        *("mpirun", "-hosts", *hosts, "-n", "3", "-localhost", "10.0.0.1"),
        *("-launcher", "ssh", "-launcher-exec", "{run_dir}/remote", "-disable-x", "-genvnone"),
        *("sh", "-c"),
    )
    assert argv[: len(expected)] == expected
    assert made.nodes[1].env["MPICH_INTERFACE_HOSTNAME"] == "10.0.0.2"
    by_hand = made.nodes[0].ranks[0].by_hand
    assert "MASTER_ADDR" in by_hand[by_hand.index("-genvlist") + 1]
    assert "MPICH_INTERFACE_HOSTNAME" not in by_hand[by_hand.index("-genvlist") + 1]
    assert made.notes == ()
    assert not any(name.startswith("OMPI_") for name in made.nodes[0].env)


def test_the_users_variables_win_over_the_engines() -> None:
    made = plan(LauncherName.MPI, env={"OMPI_MCA_btl_tcp_if_include": "ib0", "X": "1"})
    assert made.nodes[1].env["OMPI_MCA_btl_tcp_if_include"] == "ib0"


def test_hosts_with_other_interpreters_name_theirs() -> None:
    made = plan(LauncherName.MPI, A, replace(B, python="/other/python"))
    argv = made.nodes[0].ranks[0].argv
    assert 'exec "$DISTCONSOLE_PYTHON" "$@"' in argv
    assert [node.env["DISTCONSOLE_PYTHON"] for node in made.nodes] == [PYTHON, "/other/python"]


def test_two_hosts_that_are_one_machine_are_refused_for_mpirun() -> None:
    with pytest.raises(PlanError, match="a and user@b are one machine") as caught:
        plan(LauncherName.MPI, one_machine=True)
    assert "--hosts a:2" in caught.value.hint


def test_hosts_with_other_folders_are_refused_for_mpirun() -> None:
    other = replace(B, node_dir="/scratch/dc")
    with pytest.raises(
        PlanError, match=r"/tmp/distconsole-1000 on a and /scratch/dc on"
    ) as caught:
        plan(LauncherName.MPI, A, other)
    assert "node_dir" in caught.value.hint


def test_more_ranks_than_slots_are_refused() -> None:
    with pytest.raises(PlanError, match=r"--nproc 4 is more than a has slots \(2\)"):
        plan(LauncherName.MPI, A, nproc="4")


def test_what_a_person_pastes_for_mpirun_needs_nothing_of_ours() -> None:
    text = dry_run_text(plan(LauncherName.MPI, env={"HF_TOKEN": "s3cr3t", "LR": "1"}))
    assert "distconsole-run" not in text
    assert "reports" not in text
    assert "s3cr3t" not in text
    assert "-x MASTER_PORT" in text
    assert "-x LR" in text
    assert "# the first host starts what runs here" in text


PLACE = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $1"; exit $2'


@pytest.mark.parametrize(
    "engine",
    [
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    ],
)
@pytest.mark.parametrize("wrapper", [AS_RANK, f'{TORCH_NAMES}exec "$@"'])
def test_a_rank_below_mpirun_has_torchs_variables(engine: dict[str, str], wrapper: str) -> None:
    done = run_to_end(
        ["sh", "-c", wrapper, "sh", "sh", "-c", PLACE, "sh", "a b", "3"],
        env={"PATH": os.environ["PATH"], **engine},
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "5 8 1 4 a b\n", "")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
)
def test_a_rank_of_a_run_reports_itself_and_stays_after_a_failure(
    tmp_path: Path, script: str, code: int
) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "reports")
    reports = os.open(tmp_path / "reports", os.O_RDWR)
    env = {
        "PATH": os.environ["PATH"],
        "DISTCONSOLE_RUN_DIR": str(tmp_path),
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    }
    command = f"echo out; echo err >&2; {script}"
    with subprocess.Popen(
        ["sh", "-c", AS_RANK, "sh", "sh", "-c", command], env=env, stderr=subprocess.PIPE
    ) as rank:
        told = b""
        while told.count(b"\n") < 2:
            told += os.read(reports, 100)
        assert rank.poll() is None
        rank.kill()
        assert rank.stderr.read() == b""
    os.close(reports)
    started, exited = told.decode().splitlines()
    assert started.split()[:3] == ["started", "5", "1"]
    assert exited == f"exited 5 {code}"
    assert (tmp_path / "logs/rank-5.out").read_text() == "out\n"
    assert (tmp_path / "logs/rank-5.err").read_text() == "err\n"
