"""Which hosts are asked to load their GPUs, what a second look changes, and who is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.gpu import Gpu, GpuFacts, GpuLoadFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.loads import load_gpus
from distconsole.config.schema import Config
from distconsole.errors import NodeError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

GB = 10**9
Answer = list[dict[str, Any]]


class Link:
    """A node that answers one question after the other, and notes them."""

    def __init__(self, *answers: Answer | NodeError | Callable[[], Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def request(self, _verb: str, *, group: str, args: Mapping[str, Any], **_: Any) -> Any:
        self.asked.append((group, args))
        if group == "gpu.load.stop":
            return {"facts": {"stopping": True}}
        answer = self.answers.pop(0)
        if isinstance(answer, NodeError):
            raise answer
        return {"facts": {"gpus": answer() if callable(answer) else answer}}


def entry(index: int = 0, rate: float = 25.0, **more: Any) -> dict[str, Any]:
    """A GPU whose link is at its best."""
    link = {"width": 16, "width_max": 16, "generation": 4, "generation_max": 4}
    copied = {"to_device": round(rate * GB), "from_device": round(rate * GB), "replays": 0}
    return {"index": index, "uuid": f"U-{index}", **link, **copied, **more}


def context_of(
    links: Mapping[str, Link], gpus: Mapping[str, tuple[str, ...]], **asked: Any
) -> CheckContext:
    cluster = Cluster(hosts=tuple(Host(HostName(name)) for name in gpus))
    session = cast(
        "Session", SimpleNamespace(cluster=cluster, config=Config(), has_link=lambda _: True)
    )
    made = CheckContext(Check(**asked), session, frozenset({GpuFacts, GpuLoadFacts}))
    for name, uuids in gpus.items():
        found = tuple(Gpu(index=at, uuid=uuid, name="A100") for at, uuid in enumerate(uuids))
        facts = GpuFacts(present=bool(uuids), count=len(uuids), gpus=found)
        made.hosts[HostName(name)].add_facts(facts)
        made.links[HostName(name)] = cast("NodeLink", links[name])
    return made


def loads(context: CheckContext) -> dict[str, GpuLoadFacts]:
    return context.view().of(GpuLoadFacts)


def missing(context: CheckContext, name: str) -> tuple[Outcome, str]:
    lack = context.hosts[HostName(name)].missing[GpuLoadFacts]
    return lack.outcome, lack.why


def test_a_suspect_is_measured_again_and_its_better_reading_counts() -> None:
    first = [entry(0), entry(1, rate=5.0, generation=1, replays=9)]
    links = {"a": Link(first, [entry(1, rate=24.0)]), "b": Link([entry(0)])}
    context = context_of(links, {"a": ("U-0", "U-1"), "b": ("V-0",)})

    assert sorted(load_gpus(context)) == ["a", "b"]
    assert [args["uuids"] for _, args in links["a"].asked] == [[], ["U-1"]]
    assert len(links["b"].asked) == 1
    well, suspect = loads(context)["a"].gpus
    assert (suspect.generation, suspect.to_device, suspect.replays) == (4, 24 * GB, 0)
    assert well.to_device == 25 * GB


def test_a_suspect_that_is_in_use_by_then_stays_as_it_was() -> None:
    used = {"index": 0, "uuid": "U-0", "skipped": "in use"}
    links = {"a": Link([entry(0, rate=12.0, width=8)], [used])}
    context = context_of(links, {"a": ("U-0",)})
    list(load_gpus(context))
    assert [(gpu.width, gpu.skipped) for gpu in loads(context)["a"].gpus] == [(8, "")]


def test_each_gpu_is_loaded_by_one_host_and_hosts_without_are_not_asked() -> None:
    links = {"a": Link([entry(0)]), "b": Link([entry(1)]), "c": Link(), "d": Link()}
    gpus = {"a": ("U-0",), "b": ("U-0", "U-1"), "c": ("U-1", "U-0"), "d": ()}
    context = context_of(links, gpus)

    list(load_gpus(context))
    assert [args["uuids"] for name in "ab" for _, args in links[name].asked] == [[], ["U-1"]]
    assert missing(context, "c") == (Outcome.SKIPPED, "they are the GPUs of b")
    assert missing(context, "d") == (Outcome.SKIPPED, "no GPU")
    assert not links["c"].asked + links["d"].asked


def test_a_host_that_does_not_answer_costs_the_others_nothing() -> None:
    links = {"a": Link(NodeError("a: the connection is lost")), "b": Link([entry(0)])}
    context = context_of(links, {"a": ("U-0",), "b": ("V-0",)})
    assert sorted(load_gpus(context)) == ["a", "b"]
    assert missing(context, "a") == (Outcome.COULD_NOT_RUN, "a: the connection is lost")
    assert loads(context)["b"].gpus[0].measured


def test_no_gpu_is_loaded_when_the_budget_is_over() -> None:
    links = {"a": Link()}
    context = context_of(links, {"a": ("U-0",)}, budget_seconds=2.0)
    assert list(load_gpus(context)) == []
    assert missing(context, "a") == (Outcome.TIMED_OUT, "the budget was over")
    assert not links["a"].asked


def test_hosts_that_still_load_are_told_to_stop_when_nobody_waits() -> None:
    begun, over = threading.Event(), threading.Event()

    def once_the_other_has_begun() -> Answer:
        begun.wait(20)
        return [entry(0)]

    def for_long() -> Answer:
        begun.set()
        over.wait(20)
        return []

    links = {"a": Link(once_the_other_has_begun), "b": Link(for_long)}
    context = context_of(links, {"a": ("U-0",), "b": ("V-0",)})
    stage = load_gpus(context)
    assert next(stage) == "a"
    stage.close()  # type: ignore[attr-defined]
    over.set()
    assert [group for group, _ in links["b"].asked] == ["gpu.load", "gpu.load.stop"]
    tokens = {args["token"] for _, args in links["b"].asked}
    assert len(tokens) == 1
    assert [group for group, _ in links["a"].asked] == ["gpu.load"]
