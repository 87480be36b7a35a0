"""The text of ``run --emit``, as far as no starter is needed to judge it."""

from dataclasses import replace

import pytest

from distconsole.errors import PlanError, UnavailableError
from distconsole.launch.choose import Choice
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import Endpoint, NodeFacts, NodePlan, Plan, RankPlacement
from distconsole.launch.show import emit
from distconsole.model.cluster import Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, Rank
from distconsole.model.requests import EmitKind, LauncherName, PassArgs, Run, Where
from suite.programs import run_to_end

READABLE = ScriptTraits(readable=True, torch=True, distributed=True)
KINDS = list(EmitKind)


def plan(*slots: int) -> Plan:
    nodes = []
    for index, count in enumerate(slots):
        first = sum(slots[:index])
        process = RankPlacement(Rank(first), 0, ("/opt/bin/python", "/work/train.py"), {})
        endpoint = Endpoint(f"10.0.0.{index + 1}", f"eth{index}")
        host = Host(HostName(f"n{index + 1}"))
        node = NodePlan(host, NodeFacts("/p"), endpoint, index, first, count, count, (process,))
        nodes.append(node)
    choice = Choice(LauncherName.TORCH, "")
    return Plan(Run("train.py"), choice, READABLE, tuple(nodes), "/work/train.py")


def to_emit(
    request: Run, traits: ScriptTraits = READABLE, placed: Plan | None = None, **env: str
) -> tuple[PreparedLaunch, str, Plan | None]:
    return PreparedLaunch(request, env, traits), "/work", placed


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_holds_a_secret_and_each_says_what_it_lacks(kind: EmitKind) -> None:
    text = emit(kind, *to_emit(Run("train.py"), placed=plan(2, 2), HF_TOKEN="s3cret", LR="1"))
    assert "s3cret" not in text
    assert "${HF_TOKEN:?" in text
    assert "export LR=1" in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pass_args", [None, *PassArgs])
def test_bash_understands_every_file(kind: EmitKind, pass_args: PassArgs | None) -> None:
    request = Run("train.py", ("--note", 'it\'s\n$(id) "x" {port}'), pass_args=pass_args)
    text = emit(kind, *to_emit(request, placed=plan(2, 2), NOTE="a'b\nc"))
    done = run_to_end(["bash", "-n"], input=text)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_arguments_that_a_script_declares_are_added_as_it_spells_them() -> None:
    traits = replace(READABLE, local_rank="--local-rank")
    assert '/work/train.py --local-rank="$LOCAL_RANK" --lr 1' in emit(
        EmitKind.TORCHRUN, *to_emit(Run("train.py", ("--lr", "1")), traits, plan(1, 1))
    )
    request = Run("train.py", pass_args=PassArgs.INIT_METHOD)
    text = emit(EmitKind.SBATCH, *to_emit(request, placed=plan(1, 1)))
    assert '--init_method "tcp://$MASTER_ADDR:$MASTER_PORT" --rank "$RANK"' in text


def test_a_script_that_spawns_is_one_process_a_node() -> None:
    traits = replace(READABLE, spawns=True)
    request = Run("train.py", ("--rank", "{node_rank}"))
    text = emit(EmitKind.SBATCH, *to_emit(request, traits, plan(1, 1)))
    assert "#SBATCH --ntasks-per-node=1" in text
    assert 'export NODE_RANK="$SLURM_NODEID"' in text
    assert "export RANK=" not in text
    with pytest.raises(UnavailableError, match="spawn"):
        emit(EmitKind.TORCHRUN, *to_emit(request, traits, plan(1, 1)))
    told = replace(traits, init_method="--dist-url", rank="--rank", world_size="--world-size")
    text = emit(EmitKind.SBATCH, *to_emit(request, told, plan(1, 1)))
    assert '--dist-url "tcp://$MASTER_ADDR:$MASTER_PORT" --world-size "$NNODES" --rank' in text


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("-N2 --gres=gpu:4", "#SBATCH --ntasks-per-node=4"),
        ("-N2 --gres=gpu:a100:4", "#SBATCH --ntasks-per-node=4"),
        ("-N2 --gpus-per-node=h100:8", "#SBATCH --ntasks-per-node=8"),
        ("-N2", "#SBATCH --ntasks-per-node=1"),
        ("-N2 -n 6", "#SBATCH -n 6"),
    ],
)
def test_a_job_without_hosts_has_a_rank_a_gpu(options: str, line: str) -> None:
    text = emit(EmitKind.SBATCH, *to_emit(Run("train.py", slurm=options)))
    assert line in text.splitlines()
    assert text.count("ntasks-per-node") <= 1


def test_named_hosts_are_the_nodes_and_unequal_ones_no_job_of_srun() -> None:
    request = Run("train.py", where=Where(hosts="n[1-2]"))
    assert "#SBATCH --nodelist=n1,n2" in emit(
        EmitKind.SBATCH, *to_emit(request, placed=plan(2, 2))
    )
    with pytest.raises(PlanError, match="as many ranks"):
        emit(EmitKind.SBATCH, *to_emit(request, placed=plan(2, 1)))
    text = emit(EmitKind.MPIRUN, *to_emit(request, placed=plan(2, 1)))
    assert "--host 127.0.0.1:2,n2:1 -np 3" in text
    assert "-hosts n1:2,n2:1 -n 3" in text  # MPICH
    assert "-hosts n1,n1,n2 -ppn 1 -n 3" in text  # Intel MPI


def test_what_a_starter_cannot_do_is_refused() -> None:
    horovod = replace(READABLE, horovod=True)
    for kind in (EmitKind.SBATCH, EmitKind.TORCHRUN):
        with pytest.raises(UnavailableError, match="imports Horovod"):
            emit(kind, *to_emit(Run("t.py", launcher=LauncherName.AUTO), horovod, plan(1)))
    asked = to_emit(Run("t.py", launcher=LauncherName.HOROVOD), horovod, plan(1))
    with pytest.raises(UnavailableError, match=r"the launcher is horovod \(asked for\)"):
        emit(EmitKind.SBATCH, *asked)
    with pytest.raises(PlanError, match="needs hosts"):
        emit(EmitKind.MPIRUN, *to_emit(Run("t.py", slurm="-N2")))
