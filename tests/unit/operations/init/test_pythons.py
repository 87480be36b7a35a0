"""Claims about what a node says of its interpreters: the first that ranks need, and nothing that is not ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.operations.init.init import (
    MARK,
    Looked,
    Python,
    rank_pythons,
    read_answer,
    script_for,
)
from suite.programs import run_to_end

BARE = Python("3.12.1", is_default=True)
CPU = Python("3.11.4", "2.4.0")
CUDA = Python("3.11.4", "2.4.0 for CUDA 12.1", has_gpus=True)


def told(path: str, version: str, torch: str = "", prefix: str = "", word: str = "other") -> str:
    python = {"version": version, "prefix": prefix or path}
    found = {"present": bool(torch), "version": torch, "cuda": "12.1" if "+cu" in torch else None}
    return f"{MARK}\t{word}\t{path}\n" + json.dumps(["facts", {"python": python, "torch": found}])


def test_a_shell_finds_the_environment_that_has_torch(home: Path) -> None:
    folder = home / "my conda" / "envs" / "train"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (torch,) = folder.glob("lib/python*/site-packages")
    (torch / "torch").mkdir()
    (torch / "torch" / "__init__.py").touch()
    (torch / "torch" / "version.py").write_text("__version__ = '9.9'\ncuda: str = '13.0'\n")
    script = script_for(Host(HostName("a"), setup="export PATH=/usr/bin:/bin; echo loaded"))
    shell = run_to_end(["sh", "-s"], input=script, env=dict(os.environ), check=True)
    looked = read_answer(shell.stdout)
    found = looked.pythons[str(folder / "bin" / "python")]
    assert (found.torch, found.has_gpus, found.is_default) == ("9.9 for CUDA 13.0", True, False)
    assert rank_pythons({HostName("a"): looked})[0][0] == str(folder / "bin" / "python")
    assert shell.stderr == "loaded\n"
    assert looked.machine.startswith(f"{os.uname().nodename} ")


def test_an_interpreter_is_read_with_its_torch_and_once_by_its_first_name() -> None:
    answer = "\n".join(
        [
            "Welcome to gpu1!",
            f"{MARK}\tgpus\t8",
            told("/usr/bin/python3", "3.12.1", prefix="/usr", word="default"),
            told("/usr/bin/python3.12", "3.12.1", prefix="/usr"),
            told("/opt/env/bin/python", "3.11.4", "2.4.0+cu121"),
        ]
    )
    looked = read_answer(answer)
    assert looked == Looked(
        8,
        {
            "/usr/bin/python3": BARE,
            "/opt/env/bin/python": Python("3.11.4", "2.4.0+cu121 for CUDA 12.1", has_gpus=True),
        },
    )


def test_what_is_too_old_or_no_fact_is_left_out_and_escapes_are_taken_off() -> None:
    answer = "\n".join(
        [
            f"{MARK}\tgpus\tmany",
            told("/old", "3.6.8"),
            told("/odd\x1b[2J", "3.11.4"),
            told("/words", "three"),
            f'{MARK}\tother\t/broken\n["facts", {{"python": 1}}]\n["facts"]\n["facts", 7]',
            told("/good", "3.11.4", "2.4.0\x1b[31m"),
        ]
    )
    assert read_answer(answer) == Looked(0, {"/good": CPU})


def test_a_node_that_says_nothing_of_ours_is_told_apart() -> None:
    assert read_answer("This account is not available.\n") is None


def test_torch_on_most_hosts_goes_first_then_a_build_for_what_the_hosts_have() -> None:
    found = {
        HostName("a"): Looked(8, {"/usr": BARE, "/cpu": CPU, "/cuda": CUDA}),
        HostName("b"): Looked(8, {"/usr": BARE, "/cpu": CPU, "/cuda": CUDA, "/own": CUDA}),
    }
    assert [path for path, _ in rank_pythons(found)] == ["/cuda", "/cpu", "/own", "/usr"]
    assert dict(rank_pythons(found))["/own"] == ["b"]
    without = {HostName("a"): Looked(0, {"/cuda": CUDA, "/cpu": CPU})}
    assert [path for path, _ in rank_pythons(without)] == ["/cpu", "/cuda"]
