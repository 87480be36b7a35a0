"""What is submitted to Slurm and what ``--dry-run`` says of it; no Slurm is asked."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from distconsole.errors import UsageError
from distconsole.launch.slurm.submit import (
    Options,
    job_script,
    read_options,
    submit_command,
    words_of,
)
from distconsole.model.events import TextMade
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import PlanMade
from distconsole.operations import Control, perform
from distconsole_agent.engines import slurm
from fakes.sessions import no_session


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("", Options()),
        ("-N2 --gres=gpu:4 -t 1:00:00", Options(2, gpus_a_node=4)),
        ("-N 2-4 --gres gpu:a100:8,nvme:1", Options(2, gpus_a_node=8)),
        ("--nodes=2 -n 8 -c4", Options(2, 4, cpus=4)),
        ("--nodes 2 -n 7", Options(2)),
        ("-N1 -N3 --ntasks-per-node=2 -n 9", Options(3, 2)),
        ("--gpus-per-node=h100:2", Options(gpus_a_node=2)),
        ("-N2 -G 8 --requeue", Options(2, gpus_a_node=4, requeue=True)),
        ("-N2 --gres=gpu --requeue --no-requeue", Options(2, gpus_a_node=1)),
        ("-N2 --no-requeue --requeue=expedite", Options(2, requeue=True)),
        ("--gres=nvme:2 -C fast --cpus-per-task 3", Options(cpus=3)),
    ],
)
def test_sbatchs_options_say_what_a_job_will_probably_get(options: str, asked: Options) -> None:
    assert read_options(words_of(options)) == asked


def test_named_hosts_are_exactly_the_jobs_nodes() -> None:
    words = submit_command("-p gpu --comment 'a b'", "t-1", ["n1", "n2"], ["n3"])
    assert words[:6] == ["sbatch", "--parsable", "--no-requeue", "--job-name", "t-1", "--output=/dev/null"]  # fmt: skip
    assert words[6:-2] == [
        *("-p", "gpu", "--comment", "a b"),
        *("--nodes=2", "--nodelist=n1,n2", "--exclude=n3"),
    ]
    assert words[-2:] == ["--wrap", job_script(folder=str(Path.cwd()))]


def hold(tmp_path: Path) -> subprocess.Popen[str]:
    """Start a job's script as user 0's node folder lay in ``tmp_path``."""
    script = job_script(unused_seconds=30, folder=str(tmp_path)).replace(
        "/tmp/distconsole-$(id -u)", str(tmp_path / "own")
    )
    env = {**os.environ, "SLURM_JOB_ID": "7"}
    pipe = subprocess.PIPE
    return subprocess.Popen(["sh", "-c", script], env=env, cwd=tmp_path, stdout=pipe, text=True)


def test_a_held_job_becomes_the_script_that_its_agent_names_and_evaluates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "default_node_dir", lambda: str(tmp_path / "own"))
    script = tmp_path / "a $(touch mark); touch mark"
    script.write_text("echo became $#: $1 $SLURM_SUBMIT_DIR\n")
    with hold(tmp_path) as held:
        slurm.tell_holder("7", str(script))
        assert held.communicate(timeout=30)[0] == f"became 1: --held {tmp_path}\n"
    assert not (tmp_path / "mark").exists()
    with hold(tmp_path) as held:
        slurm.tell_holder("7", "touch mark; touch mark")
        held.communicate(timeout=30)
    assert held.returncode == 127
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o707, None])
def test_a_job_is_held_only_in_a_private_folder(tmp_path: Path, mode: int | None) -> None:
    real = tmp_path / ("real" if mode == 0o700 else "own")
    if mode is None:
        real.write_text("")
    else:
        real.mkdir()
        real.chmod(mode)
    if mode == 0o700:
        (tmp_path / "own").symlink_to(real)
    with hold(tmp_path) as held:
        held.communicate(timeout=10)
    assert held.returncode == 74
    assert real.is_file() or not list(real.iterdir())


@pytest.mark.parametrize(("options", "code"), [("-N2", 75), ("-N2 --requeue", 74)])
def test_only_a_job_that_may_be_requeued_waits_for_words_again(
    options: str, code: int, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mkfifo").write_text("#!/bin/sh\nexit 1\n")
    (programs / "mkfifo").chmod(0o700)
    script = submit_command(options, "t-1")[-1]
    env = {"PATH": f"{programs}:/bin:/usr/bin", "SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "0"}
    assert subprocess.run(["/bin/sh", "-c", script], env=env, check=False).returncode == code


def shown(options: str, launcher: LauncherName, hosts: str | None = None) -> tuple[PlanMade, str]:
    where = Where(hosts=hosts)
    request = Run("t.py", slurm=options, where=where, launcher=launcher, dry_run=True, name="x")
    events = list(perform(request, no_session, Control()))
    made = [event for event in events if isinstance(event, PlanMade)]
    text = [event.text for event in events if isinstance(event, TextMade)]
    assert (len(made), len(text)) == (1, 1)
    return made[0], text[0]


def test_a_dry_run_says_what_would_be_submitted_and_needs_no_node() -> None:
    plan, text = shown("-N2 --gres=gpu:4", LauncherName.TORCH)
    assert [host.host for host in plan.hosts] == ["NODE0", "NODE1"]
    assert [list(host.ranks) for host in plan.hosts] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    words = shlex.split(text, comments=True)
    submit = submit_command("-N2 --gres=gpu:4", plan.run)
    assert words[: len(submit)] == submit
    assert words[len(submit) : len(submit) + 3] == ["srun", "--jobid", "JOB"]
    assert {"--nodelist=NODE0,NODE1", "NCCL_SOCKET_IFNAME==NIC"} <= set(words)
    assert words.count("MASTER_ADDR=198.18.0.1") == 2
    assert "the nodes that Slurm chooses (2)" in text


def test_a_dry_run_names_the_hosts_that_were_asked_for() -> None:
    plan, text = shown("", LauncherName.MPI, hosts="gpu07,gpu11:3")
    assert [(host.host, len(host.ranks)) for host in plan.hosts] == [("gpu07", 1), ("gpu11", 3)]
    assert "mpirun --host 127.0.0.1:1,198.18.0.2:3" in text
    assert "OMPI_MCA_oob_tcp_if_include=198.18.0.0/15" in text
    assert "that Slurm chooses" not in text


def test_what_no_submitted_job_can_do_is_refused_before_it_is_submitted() -> None:
    requeued, elastic = {"slurm": "--requeue", "detach": True}, {"slurm": "", "nnodes": "1:2"}
    refused = {"--requeue needs the console": requeued, "ends with its first node": elastic}
    refused |= {"--slurm .*No closing quotation": {"slurm": "--comment 'a"}}
    for words, said in refused.items():
        with pytest.raises(UsageError, match=words):
            list(perform(Run("t.py", **said), no_session, Control()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "word", "instead"),
    [
        ("-N2 --array=0-3", "--array", "one run for each index"),
        ("-a0-3", "-a", "one run for each index"),
        ("-N2 -W", "-W", "leave it out"),
        ("-N2 --test-only", "--test-only", "--dry-run"),
        ("-N2 --wrap=hostname", "--wrap", "SCRIPT"),
        ("-N1 : -N1", ":", "salloc"),
    ],
)
def test_options_of_no_single_job_are_refused(options: str, word: str, instead: str) -> None:
    with pytest.raises(UsageError, match=f"follows it: {word}") as refused:
        shown(options, LauncherName.TORCH)
    assert instead in refused.value.hint
    shown("-N2 -w n1,n2 --wait-all-nodes=1 --wckey=a", LauncherName.TORCH)


def test_a_script_that_reads_slurms_variables_is_not_said_to_lack_a_job(cwd: Path) -> None:
    (cwd / "t.py").write_text("import os\nrank = int(os.environ['SLURM_PROCID'])\n")
    plan, _ = shown("-N2", LauncherName.AUTO)
    assert plan.why == "the script reads SLURM_PROCID: env:// ranks; by srun, in Slurm job JOB"
