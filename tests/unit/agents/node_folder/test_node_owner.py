"""Hosts that share a node folder: each has a part of it, and finds it again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder import node_owner
from distconsole_agent.node_folder.node_owner import keep_node_dir, take_node_dir
from distconsole_agent.server.joining import OWNER


class Kernel:
    """What the kernel says of the host that asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self._patch = monkeypatch
        self.path = path
        self.held: list[int] = []

    def be(self, name: str, boot: str = "boot") -> None:
        self._patch.setattr(node_owner, "this_host", lambda: f"{boot} of {name}\n")
        called = os.uname_result(("Linux", name.partition(".")[0], "6", "1", "x86_64"))
        self._patch.setattr(os, "uname", lambda: called)

    def take(self, name: str, boot: str = "boot") -> str:
        """Work there as the host ``name``, until ``leave``; its name ends where a dot is."""
        self.be(name, boot)
        part, held = take_node_dir(str(self.path))
        self.held.append(held)
        return os.path.relpath(part, self.path)

    def leave(self) -> None:
        while self.held:
            os.close(self.held.pop())

    def run_in(self, part: str) -> None:
        (self.path / part / "runs" / "a-run").mkdir()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel(monkeypatch, tmp_path / "node")
    yield kernel
    kernel.leave()


def test_each_host_has_a_part_and_finds_it_again(kernel: Kernel) -> None:
    assert [kernel.take(name) for name in ("a", "b", "c")] == [".", "host-2", "host-3"]
    for part in (".", "host-2", "host-3"):
        kernel.run_in(part)
    kernel.leave()
    assert [kernel.take(name) for name in ("c", "b", "a")] == ["host-3", "host-2", "."]
    assert (kernel.path / "host-2").stat().st_mode & 0o777 == 0o700


def test_programs_of_one_host_that_race_for_a_new_folder_get_one_part(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.take("a")
    # What the second saw before the first took it.
    monkeypatch.setattr(node_owner, "_is_ours", lambda _part: False)
    assert kernel.take("a") == "."


def test_a_host_of_the_same_name_does_not_take_what_somebody_works_in(kernel: Kernel) -> None:
    assert [kernel.take("vm.1"), kernel.take("vm.2")] == [".", "host-2"]


def test_a_host_that_was_booted_anew_has_its_runs_again(kernel: Kernel) -> None:
    kernel.take("a")
    kernel.take("b")
    kernel.run_in(".")
    kernel.run_in("host-2")
    kernel.leave()
    assert kernel.take("b", "next boot") == "host-2"
    assert kernel.take("a", "next boot") == "."


@pytest.mark.parametrize(("runs", "part"), [(True, "host-2"), (False, ".")])
def test_a_part_passes_on_only_without_runs(kernel: Kernel, runs: bool, part: str) -> None:
    kernel.take("a")
    if runs:
        kernel.run_in(".")
    kernel.leave()
    assert kernel.take("b") == part


@pytest.mark.parametrize("torn", ["", "boo", "boot of a\n"])
def test_an_owner_that_was_torn_by_a_loss_of_power_is_none(kernel: Kernel, torn: str) -> None:
    kernel.take("a")
    kernel.run_in(".")
    kernel.leave()
    (kernel.path / OWNER).write_text(torn)
    assert kernel.take("a", "next boot") == "."


def test_a_run_keeps_the_folder_to_its_host(kernel: Kernel) -> None:
    kernel.take("vm.1")
    kept = keep_node_dir(str(kernel.path))
    assert kept is not None
    kernel.held.append(kept)
    os.close(kernel.held.pop(0))
    assert kernel.take("vm.2") == "host-2"


def test_a_folder_that_is_nobodys_stays_so(tmp_path: Path) -> None:
    assert keep_node_dir(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_too_many_hosts_are_refused(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_owner, "MAX_HOSTS", 2)
    kernel.take("a")
    kernel.take("b")
    with pytest.raises(Refusal, match="2 hosts have their runs in"):
        kernel.take("c")
