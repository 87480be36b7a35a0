"""The program in real terminals, on two hosts of the testbed, as an operator uses it all day."""

import signal
import sys
from pathlib import Path

import pytest

from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from suite.terminal import Terminal, Terminals
from testbed import Testbed
from testbed.keeper import wait_for

pytestmark = [pytest.mark.testbed, pytest.mark.torch_ranks, pytest.mark.tmux]

TRAIN = f"""{LEAN_TORCH}
import time
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
data = torch.randn(256, 8)
wanted = data.sum(1, keepdim=True)
while True:
    loss = torch.nn.functional.mse_loss(model(data), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.2)
"""


def test_init_asks_on_the_terminal_of_the_console_which_takes_its_hosts_then(
    bed: Testbed, tmp_path: Path, lean: dict[str, str]
) -> None:
    for host in bed.hosts:
        host.set_environment(lean)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/json.py").write_text(
        "open('ran', 'w')\nraise ImportError('not Python's')"
    )
    # As a shell's job, which has its own Ctrl-C.
    program = ["env", "-C", str(tmp_path / "project")]
    program += ["bash", "-mc", '"$0" -P -m distconsole; exit $?', sys.executable]
    places = {name: str(tmp_path / name) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")}
    given = {"DISTCONSOLE_SSH_CONFIG": str(bed.ssh_config), "HOME": str(tmp_path), **places}
    with Terminals(tmp_path) as terminals:
        screen = terminals.open("console", program, **given)
        screen.see(r"NO HOSTS YET  .* knows node2", "node1 is left out: it only leads")
        screen.press("i")
        screen.see("Which hosts")
        screen.press("C-c")  # ends init alone
        screen.see("Enter goes back to the console")
        screen.press("Enter")
        screen.see("NO HOSTS YET")
        screen.press("i")
        screen.see("Which hosts")
        screen.press("node2", "Enter")
        screen.see("Which Python")
        screen.press("Enter")
        screen.see("Write it")
        screen.press("Enter")
        screen.see("Enter goes back to the console")
        screen.press("Enter")
        screen.see("1 host", "node2 .*● connected")
        screen.press("C-q")
        assert screen.exit_code() == 0
    assert not (tmp_path / "project/ran").exists()


def loss_on(screen: Terminal) -> float:
    return float(screen.see(r"── loss ─+ (\d+\.?\d*(?:e-?\d+)?)")[1])


def test_a_run_is_launched_followed_twice_and_stopped_from_terminals(
    bed: Testbed, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    hosts = ["--ssh-config", str(bed.ssh_config), "--hosts", bed.names]
    program = [sys.executable, "-m", "distconsole"]
    data = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    with Terminals(tmp_path) as terminals:
        first = terminals.open("first", [*program, *hosts], **data)
        first.see("2 hosts", "node1 .*● connected", "node2 .*● connected")
        first.type(f"run --name falling {tmp_path}/train.py")
        first.see("HEALTHY  2 ranks", r"0 node1", r"1 node2")
        began = loss_on(first)

        second = terminals.open("second", [*program, "attach", *hosts, "falling"], **data)
        second.see("HEALTHY  2 ranks", r"0 node1", r"1 node2")
        assert wait_for(lambda: loss_on(first) < began and loss_on(second) < began, 30)

        second.press("C-q")
        second.see("goes on without the console: distconsole attach falling")
        assert second.exit_code() == 0

        third = terminals.open("third", [*program, "attach", *hosts, "falling"], **data)
        third.see("HEALTHY  2 ranks", r"0 node1")
        third.end_program(signal.SIGTERM)
        third.see("goes on without the console: distconsole attach falling")
        assert third.exit_code() == 128 + signal.SIGTERM
        after = loss_on(first)
        assert wait_for(lambda: loss_on(first) < after, 30)

        first.press("F8")
        first.see(
            r"Stop falling-\S+ \(train.py",
            r"2 ranks on 2 hosts: node1 \(1\), node2 \(1\): SIGTERM",
        )
        first.press("Enter")
        first.see("STOPPED  after")
        assert gone(*bed.hosts) == []
        first.press("C-q")
        assert first.exit_code() == 0
