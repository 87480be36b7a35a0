"""
What ``setup`` fetches on the laptop.
"""

from pathlib import Path
from typing import Any

import pytest

from distconsole.launch.engines import HorovodBuild
from distconsole.model.names import HostName
from distconsole.operations.setup.installation import (
    BuildFacts,
    SetupPlan,
    _fetch_source,
    plan_setup,
)
from distconsole.rpc.wire import decode_as

TOOLS = {"g++": "/usr/bin/g++", "mpicxx": "/usr/bin/mpicxx"}
RIGHT = HorovodBuild("0.28.1", "2.13.0", "2.13.0")


def host(**differing: Any) -> BuildFacts:
    answer = {
        "tag": "cpython-311-x86_64-linux-gnu",
        "executable": "/venv/bin/python",
        "site": "/venv/site",
        "torch": {"version": "2.13.0", "cuda": None},
        "tools": TOOLS,
        "cpus": 4,
        "mpi": {"present": True, "family": "Open MPI", "version": "4.1.4", "banner": ["x"]},
    }
    return decode_as({**answer, **differing}, BuildFacts)


def plan(hosts: dict[str, BuildFacts], **horovod: HorovodBuild) -> SetupPlan:
    return plan_setup(
        {HostName(name): facts for name, facts in hosts.items()},
        {HostName(name): horovod.get(name) for name in hosts},
    )


def test_it_is_built_once_where_that_goes_best_and_installed_on_all_that_lack_it() -> None:
    made = plan(
        {"a": host(tools={}), "b": host(cpus=2), "c": host(cpus=8), "d": host(cpus=9)}, d=RIGHT
    )
    assert made.fine == ("d",)
    (build,) = made.builds
    assert (build.host, build.hosts, build.installs) == ("d", ("a", "b", "c"), ("a", "b", "c"))
    assert (build.torch, build.minutes) == ("2.13.0", 1)
    assert made.cannot == {}


def test_who_can_build_it_with_mpi_does() -> None:
    made = plan({"a": host(cpus=64, tools={"g++": "/usr/bin/g++"}), "b": host(cpus=2)})
    assert [build.host for build in made.builds] == ["b"]


@pytest.mark.parametrize(
    "other",
    [
        {"torch": {"version": "2.12.0"}},
        {"tag": "cpython-312-x86_64-linux-gnu"},
        {"libc": "glibc-2.28"},
        {"libstdcxx": "libstdc++.so.6.0.33"},
        {"mpi": {"present": True, "family": "Open MPI", "version": "5.0.1"}},
        {"mpi": {"present": False}},
        {"torch": {"version": "2.13.0", "cuda": "12.9"}},
    ],
)
def test_hosts_of_another_kind_get_a_wheel_of_their_own(other: dict[str, Any]) -> None:
    one, two = plan({"a": host(), "b": host(**other)}).builds
    assert (one.hosts, two.hosts) == (("a",), ("b",))
    assert one.folder != two.folder


def test_a_folder_that_hosts_share_is_changed_once() -> None:
    shared = {"site_id": "7-9"}
    (build,) = plan({"a": host(**shared), "b": host(**shared), "c": host(site_id="8-9")}).builds
    assert build.hosts == ("a", "b", "c")
    assert build.installs == ("a", "c")


def test_one_built_for_another_torch_is_built_anew() -> None:
    old = HorovodBuild("0.28.1", "2.13.0", "2.12.0")
    without = HorovodBuild("0.28.1", "2.13.0", library=False)
    (build,) = plan({"a": host(), "b": host(), "c": host()}, a=old, b=without, c=RIGHT).builds
    assert build.hosts == ("a", "b")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"tools": TOOLS}, "CUDA 12.9, and there is no nvcc"),
        (
            {"tools": {**TOOLS, "nvcc": "/usr/bin/nvcc"}},
            "there is no nccl.h (install libnccl-dev)",
        ),
        ({"tools": {**TOOLS, "nvcc": "/usr/bin/nvcc"}, "nccl": True}, None),
    ],
)
def test_a_torch_for_cuda_is_told_what_keeps_horovod_from_nccl(
    facts: dict[str, Any], said: str | None
) -> None:
    cuda = {"torch": {"version": "2.13.0", "cuda": "12.9"}}
    (build,) = plan({"a": host(**cuda, **facts)}).builds
    assert len(build.without) == (said is not None)
    assert all(said is not None and said in each for each in build.without)
    other = plan({"a": host(**cuda)}).builds[0].folder
    assert (build.folder != other) == (said is None), "a wheel without NCCL is no wheel with it"


def test_an_mpi_without_its_compiler_is_said() -> None:
    (build,) = plan({"a": host(tools={"g++": "/usr/bin/g++"})}).builds
    assert build.without == (
        "without MPI: there is an mpirun and no mpicxx (install Open MPI's development package)",
    )


@pytest.mark.parametrize(
    ("tag", "python"),
    [("cpython-311-x86_64-linux-gnu", "3.11"), ("cpython-39-aarch64", "3.9"), ("pypy310", "")],
)
def test_pip_is_told_the_version_of_the_other_python(tag: str, python: str) -> None:
    assert host(tag=tag).python == python


@pytest.mark.parametrize(
    ("lacking", "why", "hint"),
    [
        ({"torch": None}, "has no torch", "pip install torch"),
        ({"pip": False}, "has no pip", "ensurepip"),
        ({"managed": True}, "belongs to the system", "--python"),
        ({"writable": False}, "/venv/site is not writable", "--python"),
        ({"tools": {}}, "no C++ compiler", "g++"),
    ],
)
def test_what_cannot_be_helped_is_said_with_a_way_out(
    lacking: dict[str, Any], why: str, hint: str
) -> None:
    made = plan({"a": host(**lacking)})
    assert (made.fine, made.builds) == ((), ())
    said, typed = made.cannot[HostName("a")]
    assert why in said
    assert hint in typed


def test_a_host_that_has_it_needs_nothing_else() -> None:
    assert plan({"a": host(writable=False, tools={})}, a=RIGHT).fine == ("a",)


def test_a_module_of_the_working_folder_is_not_taken_for_pip(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "pip.py").write_text(f"open({str(cwd / 'mark')!r}, 'w')\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert _fetch_source(None, cwd) is None
    assert not (cwd / "mark").exists()
