"""``--max-restarts`` on two hosts whose console has gone: real sshd, torch's ranks, the training package."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distconsole.__main__ import run
from suite.driving import write_script
from suite.lean_torch import LEAN_TORCH
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.torch_ranks]

TRAINS = f"""{LEAN_TORCH}
import os
from torch.nn.parallel import DistributedDataParallel
from distconsole_training import Checkpoints, setup

with setup() as world:
    restart = int(os.environ.get("DISTCONSOLE_RESTART", 0))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = Checkpoints(sys.argv[1], model=model, optimizer=optimizer)
    step = kept.resume()
    print("attempt", restart, "from", step, flush=True)
    while step < 8:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            kept.save(step)
        if step == 6 and world.rank == 1 and restart == 0:
            raise ValueError(f"boom {{restart}}")
"""
RAISES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError(f"boom {os.environ.get('DISTCONSOLE_RESTART', 0)}")
time.sleep(300)
"""


@pytest.fixture
def program(
    standing_bed: Testbed, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command line in this process: its words to its exit code and its output."""

    def call(*words: str) -> tuple[int, str]:
        where = ["--ssh-config", str(standing_bed.ssh_config), "--hosts", standing_bed.names]
        code = run([words[0], *(where if words[0] != "show" else ()), *words[1:]])
        return code, capfd.readouterr().out

    return call


def events(told: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in told.splitlines()]
    return [event for event in found if event["event"] == kind]


def test_a_job_whose_console_has_gone_goes_on_from_its_checkpoint(
    program: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "saved"
    words = ("--detach", "--max-restarts", "3", "--name", "night", write_script(tmp_path, TRAINS))
    assert program("run", *words, str(saved))[0] == 0
    # Another machine than the one that started it knows nothing but what the hosts tell.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "others"))
    code, seen = program("attach", "--json", "night")
    assert code == 0
    (finding,) = [each for each in events(seen, "finding") if each["check"] == "run.restart"]
    assert finding["severity"] == "warn"
    assert (finding["rank"], finding["hosts"]) == (1, ["node2"])
    assert "ValueError: boom 0; restart 1 of 3" in finding["summary"]
    assert finding["summary"].endswith(f"with the checkpoint {saved}/step-000000004.pt")
    assert 'raise ValueError(f"boom {restart}")' in finding["seen"]
    (restart,) = events(seen, "restart")
    assert (restart["restart"], restart["of"]) == (1, 3)
    (end,) = events(seen, "end")
    assert (end["state"], end["exit_code"], end["restarts"]) == ("succeeded", 0, 1)
    said = {
        (line["rank"], line["line"]) for line in events(seen, "log") if "attempt" in line["line"]
    }
    assert said == {(r, f"attempt {n} from {4 * n}") for r in (0, 1) for n in (0, 1)}
    states = [(each["rank"], each["state"]) for each in events(seen, "rank")]
    assert dict(states) == {0: "exited", 1: "exited"}  # the last of each
    # Of rank 1's first: "killed" where rank 0 met its end before it was done, and the node was to stop.
    ends = [state for rank, state in states if rank and state in ("failed", "killed", "exited")]
    assert len(ends) == 2, states
    assert "restarts     1" in program("show", "night")[1].splitlines()


def test_a_job_that_has_no_restart_left_ends_as_its_last_attempt_did(
    program: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    words = (
        "--max-restarts",
        "1",
        "--launcher",
        "torch",
        "--json",
        write_script(tmp_path, RAISES),
    )
    code, told = program("run", *words)
    (end,) = events(told, "end")
    first = end["first_failure"]
    assert code == end["exit_code"] == first["exit_code"] == 1
    assert (end["state"], end["restarts"], first["rank"]) == ("failed", 1, 1)
    assert "ValueError: boom 1" in first["traceback"]
    assert "boom 0" not in first["traceback"]
    checks = [each["check"] for each in events(told, "finding")]
    assert [name for name in checks if "restart" in name] == ["run.restart", "run.not_restarted"]
    assert checks.count("run.first_failure") == 1
