"""The words of each engine, and the script that runs inside."""

import os
import subprocess
from pathlib import Path

import pytest

from distconsole_agent.supervisor import containers
from distconsole_agent.supervisor.containers import (
    Inside,
    explain_end,
    parse_container,
    script_text,
    with_own_pythonpath,
    words_to_enter,
    words_to_start,
    write_script,
)
from suite.programs import run_to_end

SHARED = (
    "run --rm --interactive --pull=never --entrypoint= --network=host --pid=host --ipc=host "
    "--security-opt=label=disable"
)


def devices(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    monkeypatch.setattr(containers.os.path, "exists", lambda path: path in there)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "docker:nvcr.io/nvidia/pytorch:24.08-py3 -v /data:/data",
            f"docker {SHARED} --ulimit=memlock=-1 --ulimit=stack=67108864 --user=7:8 "
            "--device=/dev/infiniband --gpus=all --volume=/n:/n --volume=/w:/w -v /data:/data "
            "nvcr.io/nvidia/pytorch:24.08-py3",
        ),
        (
            "podman:train",
            f"podman {SHARED} --user=7:8 --device=/dev/infiniband --device=nvidia.com/gpu=all "
            "--volume=/n:/n --volume=/w:/w train",
        ),
        (
            "podman:/images/root",
            f"podman {SHARED} --user=7:8 --device=/dev/infiniband --device=nvidia.com/gpu=all "
            "--volume=/n:/n --volume=/w:/w --rootfs /images/root",
        ),
        ("apptainer:/a.sif", "apptainer exec --nv --bind /n --bind /w /a.sif"),
        ("singularity:/a.sif", "singularity exec --nv --bind /n --bind /w /a.sif"),
        (
            "enroot:cuda",
            "enroot start --rw --env NVIDIA_VISIBLE_DEVICES=all --mount /n:/n:none:x-create=dir,rbind "
            "--mount /w:/w:none:x-create=dir,rbind cuda",
        ),
        ("bwrap --dev-bind / /", "bwrap --dev-bind / /"),
        ("/opt/bin/in:side x", "/opt/bin/in:side x"),
    ],
    ids=["docker", "podman", "rootfs", "apptainer", "singularity", "enroot", "command", "path"],
)
def test_an_image_gets_folders_gpus_and_the_node_s_network(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    devices(monkeypatch, "/dev/nvidiactl", "/dev/infiniband")
    assert words_to_start(parse_container(text), "7:8", ["/n", "/w"]) == tuple(words.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker:a", "--device=/dev/kfd --device=/dev/dri --group-add=video"),
        ("podman:a", "--device=/dev/kfd --device=/dev/dri --group-add=keep-groups"),
        ("apptainer:a.sif", "--rocm"),
    ],
)
def test_gpus_of_amd_are_given_too(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    devices(monkeypatch, "/dev/kfd")
    assert words in " ".join(words_to_start(parse_container(text), "0:0", ["/n"]))
    devices(monkeypatch)
    assert words not in " ".join(words_to_start(parse_container(text), "0:0", ["/n"]))


def test_a_running_container_is_entered_as_who_one_is() -> None:
    found = words_to_enter(parse_container("docker:train --privileged"), "1000:100")
    assert " ".join(found) == "docker exec --interactive --user 1000:100 --privileged train"


@pytest.mark.parametrize(
    "text", ["lxc:train", "docker:", "docker:'a", "podman:-it train", "--rm", ""]
)
def test_what_names_no_container_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no container|cannot be read"):
        parse_container(text)


def test_the_script_becomes_the_process_with_variables_and_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / containers.BEGUN)
    pipe = os.open(tmp_path / containers.BEGUN, os.O_RDWR | os.O_NONBLOCK)
    env = {"A": "it's\ntwo lines", "not.a.name": "x", "PYTHONPATH": "/hook"}
    inside = Inside(
        name="rank-1-0",
        argv=("sh", "-c", 'printf "%s|%s|%s|%s" "$A" "$PYTHONPATH" "${B-unset}" "$PWD"', "x y"),
        env=with_own_pythonpath(env, "/hook"),
        unset=("B",),
        workdir=str(tmp_path),
        pipes=(str(tmp_path / "out"), str(tmp_path / "err")),
        first_on_path="/hook",
    )
    path = write_script(str(tmp_path), inside)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    given = {**os.environ, "B": "of the image", "PYTHONPATH": "/image"}
    done = subprocess.Popen(["sh", path], env=given)
    assert done.wait() == 0
    told = (tmp_path / "out").read_text()
    assert told == f"it's\ntwo lines|/hook:/image|unset|{tmp_path}"
    assert os.read(pipe, 100) == f"rank-1-0 {done.pid}\n".encode()
    os.close(pipe)


def test_a_folder_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    text = script_text("", Inside("probe", ("true",), {}, (), str(tmp_path / "gone")))
    done = run_to_end(["sh", "-c", text])
    assert done.returncode == 126
    assert f"does not have the working folder {tmp_path / 'gone'}: mount it there" in done.stderr


def test_an_engine_that_ends_before_the_rank_runs_is_quoted() -> None:
    script = "/tmp/d-7/runs/r-1/inside/rank-0-0.sh"
    for code, said in [
        (2, f"sh: 0: cannot open {script}: No such file"),
        (127, f"bash: {script}: Datei oder Verzeichnis nicht gefunden"),
    ]:
        what, hint = explain_end("podman:train", "/tmp/d-7/runs/r-1", code, said)
        assert what == "podman:train does not have the run's folder: /tmp/d-7 is not mounted in it"
    assert "--volume /tmp/d-7:/tmp/d-7" in hint
    said = "Error: no such container\nSee 'podman exec --help'"
    assert explain_end("podman:train", "/tmp/d-7/runs/r-1", 125, said)[0].endswith(
        ": Error: no such container"
    )
