"""What is refused because of the hosts' Horovod and MPI, and where Horovod goes by MPI. No host is asked."""

from dataclasses import replace
from typing import Any

import pytest

from distconsole.errors import PlanError
from distconsole.launch.choose import Choice, decide
from distconsole.launch.engines import (
    GLOO,
    MPI,
    Engines,
    HorovodBuild,
    MpiBuild,
    engines_of,
    refuse_horovod,
    refuse_mpi,
    refuse_own_name,
)
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import LauncherName, Run

A, B, C = HostName("a"), HostName("b"), HostName("c")
BOTH = ("gloo", "mpi")


def horovod(build: HorovodBuild | None, *own: str) -> Engines:
    return Engines(("horovod",), horovod=build, own_addresses=own)


def mpi(build: MpiBuild | None) -> Engines:
    return Engines(("mpi",), mpi=build)


def test_a_host_without_the_engine_is_named_with_what_to_type() -> None:
    build = HorovodBuild("0.28.1", controllers=BOTH)
    with pytest.raises(PlanError, match="Horovod is missing on b, c") as caught:
        refuse_horovod({A: horovod(build), B: horovod(None), C: horovod(None)}, GLOO)
    assert "distconsole check --only horovod" in caught.value.hint
    with pytest.raises(PlanError, match="mpirun is missing on a") as caught:
        refuse_mpi({A: mpi(None), B: mpi(MpiBuild("Open MPI", "4.1.4"))})
    assert "apt install openmpi-bin" in caught.value.hint


def test_a_host_that_was_not_asked_is_not_refused() -> None:
    refuse_horovod({A: Engines()}, GLOO)
    refuse_mpi({A: Engines()})
    refuse_own_name({A: Engines(), B: Engines()}, {A: frozenset({"10.0.0.1"})})


@pytest.mark.parametrize(
    ("build", "controller", "lacking"),
    [
        (HorovodBuild("0.28.1", library=False), GLOO, "without PyTorch on b"),
        (HorovodBuild("0.28.1", controllers=("mpi",)), GLOO, "without Gloo on b"),
        (HorovodBuild("0.28.1", controllers=("gloo",)), MPI, "without MPI on b"),
        (HorovodBuild("0.27.0", controllers=BOTH), MPI, "0.28.1 on a; 0.27.0 on b"),
    ],
)
def test_a_horovod_that_cannot_take_part_is_refused(
    build: HorovodBuild, controller: str, lacking: str
) -> None:
    good = HorovodBuild("0.28.1", controllers=BOTH)
    with pytest.raises(PlanError, match=lacking):
        refuse_horovod({A: horovod(good), B: horovod(build)}, controller)
    refuse_horovod({A: horovod(good), B: horovod(good)}, controller)


@pytest.mark.parametrize(
    ("build", "lacking"),
    [
        (MpiBuild("Open MPI", "5.0.7"), "Open MPI 4.1 on a; Open MPI 5.0 on b"),
        (MpiBuild("MPICH", "4.1.2"), "Open MPI 4.1 on a; MPICH 4.1 on b"),
        (MpiBuild("Open MPI", "4.1.4", daemon=False), "daemon .* missing on b"),
    ],
)
def test_an_mpi_that_cannot_take_part_is_refused(build: MpiBuild, lacking: str) -> None:
    with pytest.raises(PlanError, match=lacking):
        refuse_mpi({A: mpi(MpiBuild("Open MPI", "4.1.6")), B: mpi(build)})


def test_patch_releases_of_one_mpi_go_together() -> None:
    refuse_mpi({A: mpi(MpiBuild("Open MPI", "4.1.4")), B: mpi(MpiBuild("Open MPI", "4.1.6"))})


@pytest.mark.parametrize("own", [("127.0.1.1",), (), ("192.168.0.9",)])
def test_a_name_that_leads_elsewhere_is_refused_between_hosts(own: tuple[str, ...]) -> None:
    build = HorovodBuild("0.28.1")
    hosts = {A: horovod(build, "172.16.0.1"), B: horovod(build, *own)}
    addresses = {A: frozenset({"172.16.0.1"}), B: frozenset({"172.16.0.2"})}
    with pytest.raises(PlanError, match="b: its own name means") as caught:
        refuse_own_name(hosts, addresses)
    assert "172.16.0.2 in /etc/hosts on b" in caught.value.hint
    refuse_own_name({B: hosts[B]}, addresses)  # alone it reaches itself
    refuse_own_name(hosts, {A: addresses[A]})  # they meet on loopback


def test_a_name_without_an_address_is_refused_on_any_host() -> None:
    build = HorovodBuild("0.28.1")
    lost = replace(horovod(build), own_name_error="Name or service not known")
    with pytest.raises(
        PlanError, match=r"a: its own name has no address \(Name or .* crashes"
    ) as it:
        refuse_own_name({A: lost}, {})
    assert "127.0.1.1 in /etc/hosts on a" in it.value.hint
    with pytest.raises(PlanError, match="b: its own name") as it:
        refuse_own_name({A: horovod(build), B: lost}, {B: frozenset({"172.16.0.2"})})
    assert "172.16.0.2 in /etc/hosts on b" in it.value.hint


def test_one_name_on_loopback_is_refused_only_where_another_rank_would_connect_to_it() -> None:
    build = HorovodBuild("0.28.1")
    addresses = {name: frozenset({f"10.0.0.{at}"}) for at, name in enumerate((A, B, C), 1)}
    hosts = {A: horovod(build, "10.0.0.1"), B: horovod(build, "127.0.1.1")}
    refuse_own_name(hosts, addresses)
    with pytest.raises(PlanError, match="its own name means 127"):
        refuse_own_name({**hosts, C: horovod(build, "127.0.1.1")}, addresses)


def test_horovod_goes_by_mpi_when_asked_to_or_built_so() -> None:
    traits = ScriptTraits(readable=True, horovod=True)

    def choose(build: HorovodBuild, **env: str) -> Choice:
        return decide(Run("t.py"), traits, env, {A: horovod(build)})

    for build in (HorovodBuild(controllers=BOTH), HorovodBuild()):
        assert choose(build).launcher is LauncherName.HOROVOD
    asked = choose(HorovodBuild(controllers=BOTH), HOROVOD_CONTROLLER="MPI")
    assert (asked.launcher, "HOROVOD_CONTROLLER" in asked.why) == (LauncherName.MPI, True)
    built = choose(HorovodBuild(controllers=("mpi",)))
    assert (built.launcher, "without Gloo" in built.why) == (LauncherName.MPI, True)


def test_what_a_node_says_is_read_and_nonsense_in_it_means_nothing() -> None:
    said: dict[str, Any] = {
        "horovod": {
            "present": True,
            "version": "0.28.1",
            "torch": "2.13.0",
            "against": "2.13.0",
            "library": True,
            "controllers": ["gloo", "mpi"],
        },
        "mpi": {"present": True, "family": "Open MPI", "version": "4.1.4", "daemon": "/bin/orted"},
        "own_addresses": ["10.0.0.1"],
        "own_name_error": "",
    }
    engines = engines_of(said, ("horovod", "mpi"))
    assert engines.horovod == HorovodBuild("0.28.1", "2.13.0", "2.13.0", True, BOTH)
    assert engines.mpi == MpiBuild("Open MPI", "4.1.4", daemon=True)
    assert engines.own_addresses == ("10.0.0.1",)
    assert engines.own_name_error == ""
    lost = engines_of({**said, "own_name_error": "no such name"}, ("horovod",))
    assert lost.own_name_error == "no such name"
    nonsense = engines_of({"horovod": 7, "mpi": {"present": True, "version": 4}}, ("mpi",))
    assert nonsense.horovod is None
    assert nonsense.mpi is None
    assert nonsense.own_addresses == ()
