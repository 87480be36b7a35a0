"""Plans compared as values: who starts what where, with which variables."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import ConfigError, PlanError, UsageError
from distconsole.grammar.secrets import mask_env
from distconsole.launch.launchers.torch import OWN_LOGS
from distconsole.launch.place import PreparedLaunch, make_plan
from distconsole.launch.plan import NodeFacts, Plan, new_run_id
from distconsole.launch.planner import read_env_file, user_env
from distconsole.launch.script import traits_of
from distconsole.launch.show import dry_run_text
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import RUN_ID_PATTERN, HostName, RunId
from distconsole.model.requests import Command, LauncherName, PassArgs, Run
from distconsole_agent.contract.protocol import fill
from distconsole_training.records import ENV_VERIFY
from suite.programs import run_to_end

TRAITS = ScriptTraits(readable=True, torch=True, distributed=True)


def facts(number: int, gpus: int = 0, cpus: int = 8, *, accelerator: bool = False) -> NodeFacts:
    interfaces = (Interface(f"eth{number}", f"10.0.0.{number + 1}", 24),)
    python, boot = "/opt/venv/bin/python", str(number)
    return NodeFacts(python, cpus, gpus, interfaces, boot_id=boot, accelerator=accelerator)


def plan(
    request: Run,
    *hosts: Host,
    gpus: tuple[int, ...] = (),
    accelerator: bool = False,
    traits: ScriptTraits = TRAITS,
    env: dict[str, str] | None = None,
    one_machine: bool = False,
) -> Plan:
    hosts = hosts or (Host(HostName("a")), Host(HostName("b")))
    of = {
        h.name: facts(0 if one_machine else i, gpus[i] if gpus else 0, accelerator=accelerator)
        for i, h in enumerate(hosts)
    }
    launch = PreparedLaunch(request, env or {}, traits, cluster=Cluster(hosts), facts=of)
    return make_plan(launch, RunId("train-0101-abc"), "/work/job")


def printed_below(argv: Sequence[str], line: str, **env: str) -> str:
    """Return what a shell below torchrun prints, which the ranks' wrapper of ``argv`` starts."""
    command = argv[argv.index("-c") + 1].replace("{port}", "29500")
    done = run_to_end(
        ["sh", "-c", command, "sh", "sh", "-c", line],
        env={"PATH": "/usr/bin:/bin", **env},
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_ranks_follow_the_order_of_hosts() -> None:
    made = plan(Run("train.py", ("--lr", "0.1"), nproc="2"))
    first, second = made.nodes
    assert made.world_size == 4
    assert (first.world_ranks, second.world_ranks) == ((0, 1), (2, 3))
    assert first.ranks[0].argv == (
        *("/opt/venv/bin/python", "/work/job/train.py"),
        *("--lr", "0.1"),
    )
    assert [(r.rank, r.local_rank, r.env) for r in second.ranks] == [
        (2, 0, {"RANK": "2", "LOCAL_RANK": "0", "ROLE_RANK": "2"}),
        (3, 1, {"RANK": "3", "LOCAL_RANK": "1", "ROLE_RANK": "3"}),
    ]


def test_the_variables_are_those_of_torchrun() -> None:
    second = plan(Run("train.py", nproc="2", max_restarts=3)).nodes[1]
    assert second.env == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "{port}",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "train-0101-abc",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "4",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
    }
    assert "TORCHELASTIC_ERROR_FILE" in second.unset


def test_a_pasted_deepspeed_has_the_variables_that_only_its_launcher_sets() -> None:
    made = plan(Run("train.py", nproc="2", command=Command("srun deepspeed")))
    names = ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
    assert [made.nodes[1].env[name] for name in names] == ["1", "2", "2"]
    assert not set(names) & set(plan(Run("train.py", nproc="2")).nodes[1].env)


def test_a_process_a_node_is_no_rank_of_torchrun() -> None:
    node = plan(Run("train.py", launcher=LauncherName.SINGLE)).nodes[1]
    assert not [name for name in node.env if name.startswith("TORCHELASTIC_")]
    assert "TORCHELASTIC_RUN_ID" in node.unset


def test_unequal_hosts_get_unequal_ranks() -> None:
    hosts = (Host(HostName("a"), slots=3), Host(HostName("b")))
    made = plan(Run("train.py", nproc="1"), *hosts)
    assert [node.world_ranks for node in made.nodes] == [(0, 1, 2), (3,)]
    assert made.nodes[1].env["WORLD_SIZE"] == "4"


def test_a_rank_for_each_gpu_unless_said_otherwise() -> None:
    assert plan(Run("train.py"), gpus=(4, 2)).world_size == 6
    assert plan(Run("train.py", nproc="gpu"), gpus=(4, 2)).world_size == 6
    in_job = tuple(Host(HostName(name), job_slots=8) for name in "ab")
    assert plan(Run("train.py"), *in_job).world_size == 16
    assert plan(Run("train.py"), *in_job, gpus=(4, 0)).world_size == 5
    unread = plan(Run("train.py"), *in_job, accelerator=True)
    assert unread.world_size == 2
    assert "accelerators that are not counted here: --nproc N starts more" in unread.notes[0]
    made = plan(Run("train.py", nproc="gpu"), gpus=(4, 0))
    assert made.world_size == 5
    assert made.notes == ("no GPU on b: one rank each",)
    assert plan(Run("train.py")).notes == ()


@pytest.mark.parametrize("nproc", ["0", "-1", "two", "1.5"])
def test_a_number_of_ranks_that_is_none_is_refused(nproc: str) -> None:
    with pytest.raises(PlanError, match="--nproc"):
        plan(Run("train.py", nproc=nproc))


def test_hosts_that_are_one_machine_share_its_processors() -> None:
    hosts = (Host(HostName("a"), slots=1), Host(HostName("b"), slots=3))
    made = plan(Run("t.py"), *hosts, one_machine=True)
    assert [node.env["OMP_NUM_THREADS"] for node in made.nodes] == ["2", "2"]
    assert {node.endpoint.address for node in made.nodes} == {"127.0.0.1"}


def test_the_users_variables_win() -> None:
    made = plan(Run("train.py"), env={"OMP_NUM_THREADS": "7", "MASTER_ADDR": "1.2.3.4"})
    assert made.nodes[0].env["OMP_NUM_THREADS"] == "7"
    assert made.nodes[0].env["MASTER_ADDR"] == "1.2.3.4"


def test_the_interpreter_asked_for_wins_over_the_agents() -> None:
    hosts = (Host(HostName("a"), python="/usr/bin/python3.12"), Host(HostName("b")))
    made = plan(Run("m.train", module=True), *hosts)
    assert made.nodes[0].ranks[0].argv == ("/usr/bin/python3.12", "-m", "m.train")
    assert made.nodes[1].ranks[0].argv[0] == "/opt/venv/bin/python"


@pytest.mark.parametrize("declared", ["--local_rank", "--local-rank"])
def test_the_local_rank_is_added_as_the_script_spells_it(declared: str) -> None:
    traits = ScriptTraits(readable=True, local_rank=declared)
    made = plan(Run("old.py", ("--x",), nproc="2"), traits=traits)
    assert made.nodes[0].ranks[1].argv[-2:] == (f"{declared}=1", "--x")


def test_the_init_method_is_added_with_the_first_hosts_address() -> None:
    made = plan(Run("old.py", pass_args=PassArgs.INIT_METHOD, nproc="1"))
    assert made.nodes[1].ranks[0].argv[2:] == (
        *("--init_method", "tcp://10.0.0.1:{port}"),
        *("--rank", "1", "--world_size", "2"),
    )


def test_torchrun_is_static_and_its_world_ranks_are_known() -> None:
    made = plan(Run("train.py", ("-v",), launcher=LauncherName.TORCHRUN, nproc="2"))
    second = made.nodes[1]
    assert not made.engine_ranks
    assert second.world_ranks == (2, 3)
    assert len(second.ranks) == 1
    assert shlex.join(second.ranks[0].argv) == (
        "/opt/venv/bin/python -m torch.distributed.run --nnodes 2 --node-rank 1 "
        "--rdzv-backend static --master-addr 10.0.0.1 --master-port '{port}' "
        "--local-addr 10.0.0.2 --max-restarts 0 --rdzv-id train-0101-abc --nproc-per-node 2 "
        "--monitor-interval 0.1 --log-dir '{run_dir}/torchrun' "
        f"--no-python sh -c {shlex.quote(OWN_LOGS)} sh "
        "/opt/venv/bin/python /work/job/train.py -v"
    )
    assert {"PET_NNODES", "RANK", "MASTER_ADDR"} <= set(second.unset)


@pytest.mark.parametrize(
    ("restart", "told"), [({}, "0 of 3"), ({"DISTCONSOLE_RESTART": "2"}, "2 of 3")]
)
def test_ranks_below_a_torchrun_that_the_shims_restart_are_told_the_restarts_of_the_run(
    restart: dict[str, str], told: str
) -> None:
    made = plan(Run("train.py", launcher=LauncherName.TORCHRUN, max_restarts=3))
    argv = made.nodes[0].ranks[0].argv
    assert made.max_restarts == 3
    assert dict(pairwise(argv))["--max-restarts"] == "0"
    line = 'echo "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"'
    assert printed_below(argv, line, TORCHELASTIC_MAX_RESTARTS="0", **restart) == told


def elastic(nnodes: str = "1:2", launcher: LauncherName = LauncherName.TORCHRUN) -> Run:
    return Run("train.py", launcher=launcher, nproc="2", nnodes=nnodes, max_restarts=3)


def test_a_torchrun_that_may_lose_nodes_is_dynamic_and_keeps_the_order_of_hosts() -> None:
    made = plan(elastic())
    assert made.min_nodes == 1
    assert made.max_restarts == 0  # torchrun's own
    for index, node in enumerate(made.nodes):
        argv = node.ranks[0].argv
        words = dict(pairwise(argv))
        assert words["--nnodes"] == "1:2"
        assert words["--rdzv-backend"] == "c10d"
        assert words["--rdzv-endpoint"] == "10.0.0.1:{port}"
        assert words["--rdzv-conf"].split(",")[0] == f"is_host={int(index == 0)}"
        assert words["--local-addr"] == f"0000{index}/10.0.0.{index + 1}"
        assert words["--max-restarts"] == "3"
        assert node.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        assert node.world_ranks == (2 * index, 2 * index + 1)


@pytest.mark.parametrize(
    ("given", "met"), [("00000/10.0.0.1", "10.0.0.1:29501"), ("00001/10.0.0.2", "10.0.0.2:7")]
)
def test_ranks_of_every_round_meet_where_the_first_of_its_nodes_is(
    given: str, met: str, tmp_path: Path
) -> None:
    argv = plan(elastic()).nodes[1].ranks[0].argv
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors/7.json").touch()
    env = {"MASTER_ADDR": given, "MASTER_PORT": "7", "LOCAL_RANK": "0"}
    env["DISTCONSOLE_ERRORS"] = str(tmp_path / "errors")
    assert printed_below(argv, 'echo "$MASTER_ADDR:$MASTER_PORT"', **env) == met
    assert [path.name for path in (tmp_path / "errors/past").iterdir()] == ["7.json"]


def test_auto_takes_torchrun_for_a_job_that_may_lose_hosts() -> None:
    made = plan(elastic(launcher=LauncherName.AUTO))
    assert (made.launcher, made.min_nodes) == ("torchrun", 1)


@pytest.mark.parametrize(
    ("request_", "traits", "told"),
    [
        (elastic(launcher=LauncherName.TORCH), TRAITS, "torch cannot"),
        (elastic(launcher=LauncherName.SINGLE), TRAITS, "single cannot"),
        (
            elastic(launcher=LauncherName.AUTO),
            ScriptTraits(readable=True, torch=True, local_rank="--local_rank"),
            "adds no arguments",
        ),
    ],
)
def test_a_launcher_that_cannot_lose_a_host_is_refused(
    request_: Run, traits: ScriptTraits, told: str
) -> None:
    with pytest.raises(PlanError, match=told):
        plan(request_, traits=traits)


def test_a_number_of_nodes_alone_changes_nothing() -> None:
    alone = Run("train.py", launcher=LauncherName.TORCHRUN)
    assert replace(plan(replace(alone, nnodes="2")), request=alone) == plan(alone)


def test_single_starts_one_process_a_node_and_fills_in_its_place() -> None:
    arguments = ("--dist-url", "tcp://{master_addr}:{master_port}", "--rank", "{node_rank}")
    made = plan(Run("spawn.py", arguments, launcher=LauncherName.SINGLE, nproc="4"))
    second = made.nodes[1]
    assert made.world_size == 2
    assert second.ranks[0].argv[2:] == ("--dist-url", "tcp://10.0.0.1:{port}", "--rank", "1")
    assert second.env["NODE_RANK"] == "1"
    assert "RANK" not in second.env
    assert "WORLD_SIZE" in second.unset


def test_a_script_that_spawns_gets_its_nodes_place_in_its_own_spelling() -> None:
    traits = ScriptTraits(
        readable=True,
        spawns=True,
        init_method="--dist-url",
        rank="--rank",
        world_size="--world-size",
    )
    made = plan(Run("main.py", ("--world-size", "5"), nproc="4"), traits=traits)
    assert made.launcher == "single"
    assert made.nodes[1].ranks[0].argv[2:] == (
        *("--dist-url", "tcp://10.0.0.1:{port}", "--rank", "1"),
        *("--world-size", "5"),
    )


@pytest.mark.parametrize("launcher", [LauncherName.AUTO, LauncherName.SINGLE])
def test_a_number_of_ranks_that_is_not_used_is_told(launcher: LauncherName) -> None:
    told = "{} not used: one process a node was chosen; --launcher torch starts that many ranks"
    traits = ScriptTraits(readable=True, torch=True, data_parallel=True)
    made = plan(Run("dp.py", nproc="4", launcher=launcher), traits=traits)
    assert (made.launcher, made.world_size) == ("single", 2)
    assert made.notes == (told.format("--nproc 4 is"),)
    assert plan(Run("dp.py", launcher=launcher), traits=traits).notes == ()
    hosts = (Host(HostName("node1"), slots=4), Host(HostName("node2"), slots=1))
    made = plan(Run("dp.py", launcher=launcher), *hosts, traits=traits)
    assert made.world_size == 2
    assert made.notes == (told.format("the slots of node1:4 are"),)


def test_a_script_that_spawns_is_asked_itself_for_another_number_of_ranks() -> None:
    for traits in (ScriptTraits(readable=True, spawns=True), traits_of("#!/bin/sh\ntorchrun a")):
        made = plan(Run("s.py", nproc="4"), traits=traits)
        told = "--nproc 4 is not used: one process a node was chosen, and the script itself says "
        assert made.notes[0] == f"{told}how many ranks it starts"


def test_a_spawning_script_is_not_its_own_rank() -> None:
    traits = ScriptTraits(readable=True, spawns=True)
    assert not plan(Run("spawn.py"), traits=traits).engine_ranks
    assert plan(Run("dp.py"), traits=ScriptTraits(readable=True, data_parallel=True)).engine_ranks


def test_the_workdir_is_where_the_script_lies() -> None:
    assert plan(Run("t.py", workdir="/data")).nodes[0].ranks[0].argv[1] == "/data/t.py"
    assert plan(Run("t.py", workdir="sub")).workdir == "/work/job/sub"
    assert plan(Run("/abs/t.py")).nodes[0].ranks[0].argv[1] == "/abs/t.py"


def test_a_script_that_is_brought_lies_in_the_runs_own_folder() -> None:
    (node,) = plan(Run("{run_dir}/code/a/t.py", workdir="{run_dir}/code/b")).nodes[:1]
    assert node.ranks[0].argv[1] == "{run_dir}/code/a/t.py"


@pytest.mark.parametrize("launcher", [LauncherName.TORCH, LauncherName.TORCHRUN])
def test_the_ranks_are_told_how_often_to_check_themselves(launcher: LauncherName) -> None:
    checked = plan(Run("t.py", verify_sync=100, launcher=launcher))
    assert {node.env[ENV_VERIFY] for node in checked.nodes} == {"100"}
    assert all(ENV_VERIFY not in node.env for node in plan(Run("t.py")).nodes)


@pytest.mark.parametrize(
    ("request_", "env", "said"),
    [
        (Run("t.py"), {}, ""),
        (Run("t.py", watch=False), {}, "imports distconsole_training"),
        (Run("t.py"), {"DISTCONSOLE_HOOK": "0"}, "imports distconsole_training"),
        (Run("t.py", verify_sync=9), {"DISTCONSOLE_HOOK": "0"}, "--verify-sync has no effect"),
    ],
)
def test_what_a_run_without_the_hook_lacks_is_noted(
    request_: Run, env: dict[str, str], said: str
) -> None:
    traits = traits_of(
        "import torch\ntry:\n    from distconsole_training import report\nfinally: 0"
    )
    notes = " ".join(plan(request_, traits=traits, env=env).notes)
    assert said in notes
    assert ("distconsole_training" in notes) == bool(said)
    without = " ".join(plan(request_, env=env).notes)
    assert "distconsole_training" not in without


def test_nccl_writes_into_the_runs_folder_where_it_is_asked_to() -> None:
    asked = plan(Run("t.py", nccl_debug=True))
    assert {node.env["NCCL_DEBUG_FILE"] for node in asked.nodes} == {"{run_dir}/nccl-%h-%p"}
    assert all("NCCL_DEBUG_FILE" not in node.env for node in plan(Run("t.py")).nodes)


def test_pass_args_with_another_launcher_is_refused() -> None:
    with pytest.raises(PlanError, match="--pass-args"):
        plan(Run("t.py", launcher=LauncherName.TORCHRUN, pass_args=PassArgs.TORCH_LAUNCH))


def test_no_hosts_is_an_error() -> None:
    with pytest.raises(PlanError, match="no hosts"):
        make_plan(
            PreparedLaunch(Run("t.py"), {}, TRAITS, cluster=Cluster(()), facts={}),
            RunId("x-1-a"),
            "/",
        )


def test_one_node_of_the_plan_becomes_its_spec() -> None:
    made = plan(Run("train.py", nproc="2", name="first", grace_seconds=3))
    spec: dict[str, Any] = made.specs("ab" * 32, 17.0)[1]
    assert spec["nodes"] == [
        {"host": "a", "address": "10.0.0.1", "ranks": [0, 1]},
        {"host": "b", "address": "10.0.0.2", "ranks": [2, 3]},
    ]
    assert (spec["node_index"], spec["grace"], spec["created"]) == (1, 3, 17.0)
    assert spec["ranks"][1]["env"] == {"RANK": "3", "LOCAL_RANK": "1", "ROLE_RANK": "3"}


def test_the_spec_has_what_an_agent_reads_of_it() -> None:
    from distconsole_agent.contract.runspec import RunSpec, parse_spec

    spec = plan(Run("train.py", nproc="2")).specs("ab" * 32, 17.0)[0]
    of_agent = {"hook", "rings", "agent_argv", "restart", "enter"}
    of_session = {"visible_devices", "visible_variables"}
    assert set(spec) == set(RunSpec._fields) - of_agent - of_session - {"notify", "more"}
    assert [rank.rank for rank in parse_spec(spec).ranks] == [0, 1]


def test_secrets_are_neither_in_the_event_nor_in_the_dry_run() -> None:
    made = plan(Run("train.py"), env={"HF_TOKEN": "s3cr3t", "LR": "1"})
    assert made.nodes[0].env["HF_TOKEN"] == "s3cr3t"
    assert "s3cr3t" not in dry_run_text(made) + str(made.event(0.0))
    assert made.event(0.0).hosts[0].env["LR"] == "1"


def test_the_dry_run_hides_secrets_of_the_setup_and_of_the_scripts_arguments() -> None:
    host = Host(HostName("a"), setup="export HF_TOKEN=s3cr3t; module load cuda")
    request = Run("train.py", ("--api-key", "s3cr3t", "--lr", "1"))
    text = dry_run_text(plan(request, host))
    assert "s3cr3t" not in text
    assert "module load cuda" in text
    assert "train.py --api-key *** --lr 1" in text


def test_the_dry_run_can_be_pasted(tmp_path: Path) -> None:
    script = tmp_path / "it's here.py"
    script.write_text(
        "import os, sys\n"
        "line = f\"{os.environ['RANK']} {sys.argv[1:]} {os.environ['X']}\\n\"\n"
        "os.write(1, line.encode())  # two processes share the pipe\n"
    )
    hosts = (Host(HostName("a"), slots=2, python="python3"),)
    made = plan(Run(str(script), ("a b", "$HOME")), *hosts, env={"X": "1 '2'"})
    text = dry_run_text(made).replace("cd /work/job\n", "")
    done = run_to_end(["sh", "-c", text], check=True)
    assert sorted(done.stdout.splitlines()) == [
        "0 ['a b', '$HOME'] 1 '2'",
        "1 ['a b', '$HOME'] 1 '2'",
    ]


def test_an_env_file_is_read_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# note\n\nexport A=1\nB='two words' # why\nC=a=b\nD=\n")
    assert read_env_file(path) == {"A": "1", "B": "two words", "C": "a=b", "D": ""}
    request = Run("t.py", env=(("A", "9"),), env_file=str(path))
    assert user_env(request)["A"] == "9"


@pytest.mark.parametrize("line", ["no equals", "1A=2", "A='open"])
def test_a_line_that_means_nothing_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "env"
    path.write_text(f"OK=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"env:2: "):
        read_env_file(path)


def test_a_variable_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--env"):
        user_env(Run("t.py", env=(("A B", "1"),)))


def test_names_that_sound_secret_are_hidden_and_empty_ones_shown() -> None:
    shown = {"PASSWORD": "", "PATH": "/bin", "MASTER_PORT": "1", "TOKENIZERS_PARALLELISM": "false"}
    shown["GIT_AUTHOR_NAME"] = "me"
    hidden = dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "--auth-header", "AUTHORIZATION"), "x")
    assert mask_env({**shown, **hidden}) == {**shown, **dict.fromkeys(hidden, "***")}


@pytest.mark.parametrize(
    ("request_", "stem"),
    [
        (Run("/x/Train_Big.py"), "train-big-"),
        (Run("pkg.sub.train", module=True), "train-"),
        (Run("llama3.1.py"), "llama3-1-"),
        (Run("t.py", name="My run!"), "my-run-"),
        (Run("ünicode.zsh"), "nicode-"),
        (Run("___.py"), "run-"),
        (Run("x" * 90 + ".py"), "x" * 20 + "-"),
    ],
)
def test_run_ids_are_readable_and_fit_the_pattern(request_: Run, stem: str) -> None:
    run = new_run_id(request_)
    assert re.match(rf"{re.escape(stem)}\d{{4}}-", run)
    assert RUN_ID_PATTERN.match(run)
    assert run != new_run_id(request_)


@pytest.mark.parametrize(
    "launcher", [LauncherName.TORCH, LauncherName.TORCHRUN, LauncherName.SINGLE]
)
def test_the_users_own_braces_stay_as_they_are(launcher: LauncherName) -> None:
    own = (
        "--url",
        "http://x:{port}/{run_dir}",
        "{{port}",
        "{port}}",
        "{{run_dir}}",
        "${port}",
        "{a}",
    )
    made = plan(Run("t.py", own, launcher=launcher), env={"FORMAT": "{port}", "PLAIN": "{x}"})
    for node in made.nodes:
        words = [fill(word, 4711, "/node/runs/r") for word in node.ranks[0].argv]
        assert tuple(words[-len(own) :]) == own
        env = {name: fill(value, 4711, "/node/runs/r") for name, value in node.env.items()}
        assert (env["FORMAT"], env["PLAIN"]) == ("{port}", "{x}")
        assert launcher is LauncherName.TORCHRUN or env["MASTER_PORT"] == "4711"
    host = made.event(0.0).hosts[0]
    assert host.env["FORMAT"] == "{port}"
    assert "http://x:{port}/{run_dir}" in host.command
    assert "http://x:{port}/{run_dir}" in dry_run_text(made)
