"""What a run on embedded nodes says of a training that goes wrong without failing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.model.events import EndState, Metric, RunFinding
from distconsole.model.requests import Attach, Run
from distconsole.operations import SessionSource
from distconsole.remote.embedded import EmbeddedCluster
from distconsole.session import Session
from suite.driving import Operator

pytestmark = pytest.mark.torch_ranks

NAN_ON_ONE_RANK = """
import os, time, torch
rank = int(os.environ["RANK"])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    loss = model(torch.ones(8, 4)).square().mean()
    if rank == 1 and step == 7:
        loss = loss * float("nan")
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.fixture
def sessions(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[SessionSource]:
    with (
        EmbeddedCluster(2, folder=tmp_path_factory.mktemp("e")) as cluster,
        Session(Config(), cluster.cluster) as session,
    ):
        yield lambda _where: nullcontext(session)


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def findings(run: Operator) -> list[RunFinding]:
    return [finding for finding in run.of(RunFinding) if finding.check != "run.straggler"]


def test_a_loss_that_is_nan_in_one_step_is_found_and_kept(
    sessions: SessionSource, tmp_path: Path
) -> None:
    request = Run(script(tmp_path, NAN_ON_ONE_RANK), nproc="1", name="diverges")
    with Operator(request, sessions) as run:
        assert run.end(150).state is EndState.SUCCEEDED, run.lines()
        run.finish()
    (finding,) = findings(run)
    assert (finding.check, finding.rank, finding.hosts) == ("run.not_finite", 1, ("node2",))
    assert finding.summary == "loss is nan at step 7 on rank 1"
    unlike = [metric.step for metric in run.of(Metric) if metric.value != metric.value]
    assert unlike in ([7], [])  # thinned away where the steps came faster than they can be shown
    with Operator(Attach("diverges"), sessions) as again:
        again.finish()
    assert findings(again) == [finding]
