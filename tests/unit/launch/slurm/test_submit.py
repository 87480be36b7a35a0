"""What is submitted to Slurm and what ``--dry-run`` says of it; no Slurm is asked."""

from __future__ import annotations

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
    assert words[-2:] == ["--wrap", job_script()]


def test_an_open_quote_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--slurm"):
        submit_command("--comment 'a", "t-1")


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
    assert "--nodelist=NODE0,NODE1" in words
    assert "NCCL_SOCKET_IFNAME==NIC" in words
    assert words.count("MASTER_ADDR=198.18.0.1") == 2
    assert "the nodes that Slurm chooses (2)" in text


def test_a_dry_run_names_the_hosts_that_were_asked_for() -> None:
    plan, text = shown("", LauncherName.MPI, hosts="gpu07,gpu11:3")
    assert [(host.host, len(host.ranks)) for host in plan.hosts] == [("gpu07", 1), ("gpu11", 3)]
    assert "mpirun --host 127.0.0.1:1,198.18.0.2:3" in text
    assert "OMPI_MCA_oob_tcp_if_include=198.18.0.0/15" in text
    assert "that Slurm chooses" not in text


def test_a_job_that_may_be_requeued_needs_its_console() -> None:
    request = Run("t.py", slurm="--requeue", detach=True, dry_run=True)
    with pytest.raises(UsageError, match="--requeue needs the console"):
        list(perform(request, no_session, Control()))
