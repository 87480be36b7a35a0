"""An agent that the system gives no thread: it leaves nothing behind and answers again later."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder.folders import NodeFolders, open_node_dir, this_program
from distconsole_agent.node_folder.runs import NodeRuns
from distconsole_agent.telemetry import sampling as sampling_module
from distconsole_agent.telemetry.sampling import Sampling, Telemetry
from fakes.agents import AgentNode, spec_of
from fakes.shims import wait_until
from suite.leaks import children


def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_run_that_no_thread_can_attend_leaves_no_shim(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_node_dir(str(node.node_dir))
    runs = NodeRuns(NodeFolders(folder, "dev"), this_program())
    before = children()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Refusal, match="thread"):
        runs.prepare("a-run", spec_of("a-run", [""]))
    assert [argv for _, argv in children() - before if "shim" in argv] == []
    assert list(Path(folder, "runs").iterdir()) == []
    assert runs.active == []


def never_runs(*_: object) -> None:
    """What the interpreter does with a thread that has no memory to begin with."""


@pytest.mark.parametrize("begin", [refuse, never_runs])
def test_a_sampling_that_no_thread_can_do_begins_later(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[..., None]
) -> None:
    monkeypatch.setattr(sampling_module, "BEGIN_SECONDS", 0.1)
    sampled = threading.Event()

    def targets() -> list[tuple[list[dict[str, object]], object]]:
        sampled.set()
        return []

    sampling = Sampling(Telemetry(), targets)  # type: ignore[arg-type]
    with monkeypatch.context() as starved:
        starved.setattr(sampling_module, "begin_thread", begin)
        sampling.ensure()
    wait_until("a sample", lambda: sampling.ensure() or sampled.is_set())
    assert sampled.is_set()
