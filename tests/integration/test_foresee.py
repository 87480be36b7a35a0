"""What a launch would be, asked of embedded nodes: real SSH on loopback, real agents."""

from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.errors import PlanError, UsageError
from distconsole.model.cluster import Cluster
from distconsole.model.events import LaunchersJudged, LaunchKept, ScriptSought, TextMade
from distconsole.model.requests import Foresee, LauncherName, Launches, Run
from distconsole.model.run_events import PlanMade, RunEnded
from distconsole.operations import SessionSource
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.driving import Operator, answered

SCRIPT = "import os, torch.distributed\n"


def test_a_launch_is_foreseen_as_the_dry_run_says_it(
    standing_sessions: SessionSource, cwd: Path
) -> None:
    (cwd / "train.py").write_text(SCRIPT)
    request = Run("train.py", ("--lr", "1"), nproc="2", env=(("API_KEY", "x"),))
    dry = answered(replace(request, dry_run=True), standing_sessions)
    asked = answered(Foresee(request, launchers=True), standing_sessions)
    (plan,), (as_dry,) = asked.of(PlanMade), dry.of(PlanMade)
    assert (plan.launcher, plan.why, plan.world_size) == ("torch", as_dry.why, 4)
    assert _without_ids(str(plan.hosts), plan) == _without_ids(str(as_dry.hosts), as_dry)
    assert plan.hosts[0].env["API_KEY"] == "***"
    (text,), (dry_text,) = asked.of(TextMade), dry.of(TextMade)
    assert _without_ids(text.text, plan) == _without_ids(dry_text.text, as_dry)
    (sought,) = asked.of(ScriptSought)
    assert sought == ScriptSought(script=str(cwd / "train.py"), missing=())
    (judged,) = asked.of(LaunchersJudged)
    assert "--launcher slurm needs a Slurm job" in judged.refused["slurm"]
    assert not {"torch", "torchrun", "single"} & set(judged.refused)
    assert not asked.of(RunEnded)


def test_a_script_that_is_not_there_has_a_neighbour_that_may_be_meant(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = answered(Foresee(Run(str(tmp_path / "trian.py"))), standing_sessions)
    (sought,) = asked.of(ScriptSought)
    assert sought.missing == ("node1", "node2")
    assert sought.near == str(tmp_path / "train.py")


def test_what_run_would_refuse_is_refused_and_the_launchers_are_judged_all_the_same(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    slurm = Run(str(script), launcher=LauncherName.SLURM)
    with (
        Operator(Foresee(slurm), standing_sessions) as asked,
        pytest.raises(PlanError, match="Slurm job"),
    ):
        asked.finish()
    many = Run(str(script), nproc="40000")
    with (
        Operator(Foresee(many, launchers=True), standing_sessions) as asked,
        pytest.raises(PlanError),
    ):
        asked.finish()
    (judged,) = asked.of(LaunchersJudged)
    assert "torch" not in judged.refused, "what most say is no matter of launchers"
    assert "slurm" in judged.refused
    ours = Run(str(script), ("--nproc", "2"))
    with (
        Operator(Foresee(ours), standing_sessions) as asked,
        pytest.raises(UsageError, match="--nproc"),
    ):
        asked.finish()


def test_launches_are_told_once_each_and_ask_for_the_same_again(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    script = tmp_path / "ok.py"
    script.write_text("print('done')\n")
    for arguments in (("1",), ("2",), ("1",)):
        request = Run(str(script), arguments, nproc="1")
        answered(request, standing_sessions)
    asked = answered(Launches(), standing_sessions)
    kept = asked.of(LaunchKept)
    assert [each.request.arguments for each in kept] == [("1",), ("2",)]
    assert [each.summary.state for each in kept] == ["succeeded"] * 2
    assert kept[0].request.nproc == "1"


def test_some_hosts_of_a_session_share_its_links(cluster: EmbeddedCluster) -> None:
    with Session(Config(), cluster.cluster) as session:
        whole = list(session.connect_all())
        second = replace(cluster.cluster.hosts[1], slots=3)
        part = session.part(Cluster((second,), cluster.cluster.ssh_config))
        assert [host.slots for host in part.cluster.hosts] == [3]
        assert part.link("node2") is session.link("node2")
        with pytest.raises(UsageError, match="no host 'node1'"):
            part.link("node1")
        other = replace(second, user="somebody")
        assert session.part(Cluster((other,), cluster.cluster.ssh_config)) is None
        assert len(whole) == 2


def _without_ids(text: str, plan: PlanMade) -> str:
    """Each plan has an id of its own, which ranks find in TORCHELASTIC_RUN_ID."""
    assert plan.run in text
    return text.replace(plan.run, "RUN")
