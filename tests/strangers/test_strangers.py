"""What people bring, as data: each file beside this one is a case, tried by one ``distconsole`` on two real hosts.

A file has

* ``about``: the kind, in a line; ``source``: where such a thing is met;
* ``needs``: marks of pytest beside ``testbed``, such as ``torch_ranks``;
* ``alone``: it reaches no host, and needs no bed;
* ``files``: path and text of each file in the folder where the command is typed; one that begins with ``#!``
  and whose name says nothing may be executed. The hosts see the folder under the same path, and in it a module
  ``lean_torch``, which a script imports before torch where what it leaves out does not matter, and a folder
  ``lean``, which as PYTHONPATH has a torchrun import that torch;
* ``home``: the same in the person's home; ``ssh_config`` stands in ``.ssh/config`` before what the bed says of its hosts;
* ``nodes``: by host (``all``: each) the files of its home there; ``prepare`` and ``on_nodes``: lines of bash that are
  run before, in the folder and in each node's home;
* ``typed``: the lines of bash; ``{folder}``, ``{node1}``, ``{node2}`` (addresses) and ``{key}`` (a key that the hosts
  take) are filled in, here, in ``said`` and in the files of ``home`` and in ``ssh_config``;
* ``exit``: its exit code; ``said`` and ``not_said``: parts of its output, whatever the line breaks.

``pytest -rP`` prints the seconds from Enter until all of ``said`` was said.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from suite.forked_console import forked_console
from suite.lean_torch import LEAN_SITE, LEAN_TORCH
from suite.remains import names as names_in
from testbed import HOME, Testbed

CASES = {
    path.stem: yaml.load(path.read_text(), yaml.CSafeLoader)
    for path in Path(__file__).parent.glob("*.yaml")
}
LONGEST = 120.0


class Heard:
    """What a process says, in order, and when all of ``wanted`` had been said."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = [plain(each) for each in wanted]
        self.text = ""
        self.seconds = float("inf")
        self._began = time.monotonic()

    def read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.text += line.decode(errors="replace")
            said = plain(self.text)
            if self.seconds == float("inf") and all(each in said for each in self.wanted):
                self.seconds = time.monotonic() - self._began


def plain(text: str) -> str:
    return " ".join(text.split())


def lay_out(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600 if "/.ssh/" in str(path) else 0o755 if text.startswith("#!") else 0o644)


def prepare(
    case: dict[str, Any], bed: Testbed | None, folder: Path, home: Path, fill: Any
) -> None:
    lean = {"lean_torch.py": LEAN_TORCH, "lean/sitecustomize.py": LEAN_SITE}
    lay_out(folder, {**lean, **case.get("files", {})})
    lay_out(home, {name: fill(text) for name, text in case.get("home", {}).items()})
    if bed is not None:
        config = f"{fill(case.get('ssh_config', ''))}\nMatch all\n{bed.ssh_config.read_text()}"
        lay_out(home, {".ssh/config": config})
    for host in bed.hosts if bed is not None else ():
        nodes = case.get("nodes", {})
        lay_out(host.path(HOME), {**nodes.get("all", {}), **nodes.get(host.name, {})})
        if "on_nodes" in case:
            host.exec(case["on_nodes"], timeout=60)
    if "prepare" in case:
        subprocess.run(["bash", "-ec", fill(case["prepare"])], cwd=folder, check=True, timeout=60)


def names(*, alone: bool) -> list[Any]:
    """Return the cases that reach a host, or those that reach none, with their marks."""
    return [
        pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in case.get("needs", [])])
        for name, case in sorted(CASES.items())
        if alone == ("alone" in case)
    ]


@pytest.fixture(scope="module")
def distconsole(consoles: Path) -> str:
    return forked_console(consoles)


@pytest.mark.parametrize("name", names(alone=False))
@pytest.mark.testbed
def test_a_stranger_is_helped(
    name: str, distconsole: str, standing_bed: Testbed, tmp_path: Path, home: Path
) -> None:
    try_case(name, distconsole, standing_bed, tmp_path, home)
    runs = [host.path(f"/tmp/distconsole-{os.geteuid()}/runs") for host in standing_bed.hosts]
    if CASES[name].keys() & {"nodes", "on_nodes"} or any(names_in(folder) for folder in runs):
        standing_bed.reset()


@pytest.mark.parametrize("name", names(alone=True))
def test_a_stranger_is_answered_before_any_host_is_asked(
    name: str, tmp_path: Path, home: Path
) -> None:
    distconsole = f'distconsole() {{ {sys.executable} -m distconsole "$@"; }}; '
    try_case(name, distconsole, None, tmp_path, home)


def try_case(name: str, distconsole: str, bed: Testbed | None, tmp_path: Path, home: Path) -> None:
    case, folder = CASES[name], tmp_path / "job"
    folder.mkdir()
    places = {"folder": folder}
    if bed is not None:
        places |= {"key": bed.identity} | {host.name: host.address for host in bed.hosts}

    def fill(text: str) -> str:
        for place, value in places.items():
            text = text.replace(f"{{{place}}}", str(value))
        return text

    prepare(case, bed, folder, home, fill)
    heard = Heard([fill(each) for each in case.get("said", [])])
    process = subprocess.Popen(
        ["bash", "-c", distconsole + fill(case["typed"])],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "200"},
        start_new_session=True,
    )
    assert process.stdout is not None
    end = threading.Timer(LONGEST, os.killpg, (process.pid, signal.SIGKILL))
    end.start()
    with process.stdout:
        heard.read(process.stdout)
    code = process.wait()
    end.cancel()
    end.join()
    said = plain(heard.text)
    assert [each for each in heard.wanted if each not in said] == [], heard.text
    assert [each for each in case.get("not_said", []) if plain(each) in said] == [], heard.text
    assert code == case["exit"], heard.text
    print(f"{name}: {heard.seconds:.1f} s")
