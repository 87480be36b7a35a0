"""What the campaign of faults speaks to."""

from __future__ import annotations

import pytest

from campaign.cases import draw
from campaign.hostile import is_ours


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        ("/usr/bin/python3 -S -I /h/agent-0123456789abcdef.pyz shim --run /tmp/x/runs/r", True),
        ("/usr/bin/python3 -I /h/agent-0123456789abcdef.pyz agent --node-dir /tmp/x", True),
        ("srun --jobid 1 /bin/sh -c exec python3 /h/agent-0.pyz shim --run /tmp/x/runs/r", False),
        ("python3 -m torch.distributed.run --nnodes 2 job.py", False),
        ("python3 /work/job.py --steps 60", False),
    ],
)
def test_strangers_speak_to_shims_and_agents_alone(argv: str, ours: bool) -> None:
    assert is_ours(argv) is ours


def test_strangers_come_to_the_host_on_which_a_shim_listens() -> None:
    cases = [case for seed in range(3000) if (case := draw(seed)).fault == "strangers"]
    assert cases
    assert {case.host for case in cases} == {0}
