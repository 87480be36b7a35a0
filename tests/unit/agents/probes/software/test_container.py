"""Which container is entered and how, by what engines say."""

import json
import os
from pathlib import Path

import psutil
import pytest

from distconsole_agent import probes
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.probes.arguments import ProbeError
from distconsole_agent.probes.environment import use_environment
from distconsole_agent.probes.software.container import (
    find_way,
    run_inside,
    shares_memory,
    user_inside,
    way_of_run,
)
from fakes.specs import run_spec


def engine(
    folder: Path, name: str, says: object, code: int = 0, error: str = ""
) -> dict[str, str]:
    """Put a program on a PATH that says this; return the environment with that PATH."""
    (folder / "said").write_text(says if isinstance(says, str) else json.dumps(says))
    (folder / "error").write_text(error)
    program = folder / name
    program.write_text(f"#!/bin/sh\ncat {folder}/said; cat {folder}/error >&2; exit {code}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


RUNNING = {
    "State": {"Status": "running", "Pid": os.getpid()},
    "HostConfig": {"NetworkMode": "host"},
}


def test_a_running_container_goes_before_an_image(tmp_path: Path) -> None:
    with use_environment(engine(tmp_path, "podman", [RUNNING])):
        way = find_way("podman:train", ["/w"], None)
    own = f"{os.getuid()}:{os.getgid()}"
    assert way.words == ("podman", "exec", "--interactive", "--user", own, "train")
    assert (way.kind, way.network, way.shares_memory) == ("running", "host", True)
    with use_environment(engine(tmp_path, "docker", [{"RepoTags": ["train"]}])):
        way = find_way("docker:train", ["/w"], None)
    assert (way.kind, way.words[1], way.words[-2:]) == (
        "image",
        "run",
        ("--volume=/w:/w", "train"),
    )


@pytest.mark.parametrize(
    ("says", "code", "error", "message", "hint"),
    [
        ([{"State": {"Status": "exited"}}], 0, "", "podman:train is exited", "podman start train"),
        ([{"State": {"Status": "paused"}}], 0, "", "train is paused", "podman unpause train"),
        ("[]", 125, 'no such object: "train"', "nor an image train here", "podman pull train"),
        ("", 1, "Cannot connect to the daemon", "podman: Cannot connect", "podman inspect train"),
        ("what?", 0, "", "nothing that is understood", ""),
    ],
    ids=["stopped", "paused", "nothing", "daemon", "nonsense"],
)
def test_a_container_that_cannot_be_entered_says_why_and_what_helps(
    tmp_path: Path, says: object, code: int, error: str, message: str, hint: str
) -> None:
    environment = engine(tmp_path, "podman", says, code, error)
    with use_environment(environment), pytest.raises(ProbeError) as raised:
        find_way("podman:train", [], None)
    assert message in raised.value.message
    assert hint in raised.value.hint
    told = probes.run("container", {"container": "podman:train"}, 10.0, environment)
    assert (told["trouble"], told["hint"]) == (raised.value.message, raised.value.hint)


def test_a_missing_engine_and_a_missing_image_are_named(tmp_path: Path) -> None:
    with use_environment({"PATH": str(tmp_path)}):
        for text in ("docker:a", "apptainer:/a.sif", "nobody x"):
            with pytest.raises(ProbeError, match="is not on this host's PATH") as raised:
                find_way(text, [], None)
            assert "module load" in raised.value.hint
    there = engine(tmp_path, "apptainer", "")
    with (
        use_environment(there),
        pytest.raises(ProbeError, match=r"no image /none\.sif on this host"),
    ):
        find_way("apptainer:/none.sif", [], None)
    with use_environment(engine(tmp_path, "enroot", "cuda\n")):
        assert find_way("enroot:cuda", [], None).words[-1] == "cuda"
        with pytest.raises(ProbeError, match="enroot has no container rocm here"):
            find_way("enroot:rocm", [], None)


def test_the_setup_command_may_bring_the_engine(tmp_path: Path) -> None:
    engine(tmp_path, "apptainer", "")
    image = tmp_path / "a.sif"
    image.touch()
    with use_environment({"PATH": "/usr/bin:/bin"}):
        way = find_way(f"apptainer:{image}", [], f"PATH={tmp_path}:$PATH")
    assert way.words[:2] == ("apptainer", "exec")


def test_a_user_is_known_inside_by_the_namespace_s_map(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    uid, gid = os.getuid(), os.getgid()
    for name, row in (("uid_map", f"0 {uid} 1\n1 100000 65536\n"), ("gid_map", f"5 {gid} 1\n")):
        (tmp_path / "7" / name).write_text(row)
    assert user_inside(7, str(tmp_path)) == "0:5"
    assert user_inside(8, str(tmp_path)) == f"{uid}:{gid}"
    (tmp_path / "7" / "uid_map").write_text("0 100000 65536\n")
    assert user_inside(7, str(tmp_path)) == (None if uid else "0:5")
    (tmp_path / "7" / "uid_map").write_text("")  # of a namespace that nobody has set up yet
    assert user_inside(7, str(tmp_path)) == (None if uid else "0:5")


def test_shared_memory_is_told_by_its_device(tmp_path: Path) -> None:
    assert shares_memory(os.getpid()) is True
    (tmp_path / "7").mkdir()
    other = "9 8 0:999 / /dev/shm rw - tmpfs shm rw\n"
    (tmp_path / "7" / "mountinfo").write_text(other)
    assert shares_memory(7, str(tmp_path)) is False
    assert shares_memory(8, str(tmp_path)) is None


def test_a_run_is_refused_where_other_hosts_could_not_reach_it(tmp_path: Path) -> None:
    own = {**RUNNING, "HostConfig": {"NetworkMode": "bridge"}}
    environment = engine(tmp_path, "podman", [own])
    spec = run_spec(container="podman:train", workdir="/w")
    assert way_of_run(spec, "/n", environment).network == "bridge"
    with pytest.raises(Refusal, match=r"network of its own \(bridge\)"):
        way_of_run(spec._replace(nodes=spec.nodes * 2), "/n", environment)
    with pytest.raises(Refusal, match="elastic Horovod"):
        way_of_run(spec._replace(driver=("x",)), "/n", environment)


ENGINE = """#!/bin/sh
exec setsid -w "$@"
"""
"""What it starts is in a session of its own, as below an engine's daemon."""


@pytest.mark.parametrize("text", ["sleep 600", ": ; while :; do sleep 0.1; done"])
def test_what_ends_too_late_is_killed_in_the_container_too(tmp_path: Path, text: str) -> None:
    (program := tmp_path / "engine").write_text(ENGINE)
    program.chmod(0o755)
    ended = run_inside(f"echo $$; {text}\n", 2.0, (str(program),), None)
    assert ended.exit_code is None
    session = int(ended.out)  # the shell leads the session that setsid made for it
    assert not [process for process in psutil.process_iter() if is_alive_in(process, session)]


def is_alive_in(process: psutil.Process, session: int) -> bool:
    """Return whether ``process`` runs in ``session``: what was killed may wait for the first process to reap it."""
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
