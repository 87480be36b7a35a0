"""``why`` of a run on two hosts, asked while it hangs: which rank, on which host, at which line."""

from pathlib import Path

import pytest

from suite.console import Console
from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles"), pytest.mark.torch_ranks]

HANGS = f"""{LEAN_TORCH}
import time
import torch.distributed as dist

def load_shard():
    print("loading", flush=True)
    time.sleep(600)  # the line that is named

dist.init_process_group("gloo")
total = torch.ones(4)
for step in range(5):
    dist.all_reduce(total)
if dist.get_rank() == 1:
    load_shard()
dist.all_reduce(total)
"""


def test_a_rank_that_the_others_wait_for_is_named_with_host_and_line(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    line = HANGS.splitlines().index("    time.sleep(600)  # the line that is named") + 1
    second = standing_bed.host_names[1]
    words = ("run", "--json", "--nproc", "1", "--grace", "2", str(script))
    with Console(standing_bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="loading")
        with Console(standing_bed, tmp_path, "why", "--json", console.run) as asked:
            assert asked.wait() == 0, asked.stderr
            (told,) = asked.events
        with Console(standing_bed, tmp_path, "stop", console.run) as stopped:
            assert stopped.wait() == 0, stopped.stderr
        assert console.wait() == 143
    diagnosis = told["diagnosis"]
    assert (diagnosis["ranks"], diagnosis["hosts"]) == ([1], [second]), told
    assert f"hangs.py:{line}" in diagnosis["summary"], told
    assert not gone(*standing_bed.hosts)
