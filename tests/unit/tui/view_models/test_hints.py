"""What a finding says to do: by keys inside the console, and as a command for a shell."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import distconsole
from distconsole.checks.gather.local_facts import NO_JOB
from distconsole.config.schema import Config
from distconsole.config.shortcuts import KeySetting
from distconsole.errors import UsageError
from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.operations.init.init import IN_A_SCRIPT
from distconsole.tui.prompt.keymap import Keymap, make_keymap
from distconsole.tui.view_models.hints import command_of, command_pattern, console_hint

RUN = "ddp-1128-7af509"
HINTS = {
    f"py-spy dump --pid 7; distconsole why {RUN} shows where every rank is": (
        "py-spy dump --pid 7; W shows where every rank is",
        f"py-spy dump --pid 7; 'why {RUN}' shows where every rank is",
        f"distconsole why {RUN}",
    ),
    f"distconsole logs {RUN} --rank 3; distconsole stop {RUN}": (
        "press l on rank 3; F8",
        f"'logs {RUN} --rank 3'; 'stop {RUN}'",
        f"distconsole logs {RUN} --rank 3",
    ),
    f"distconsole logs {RUN} --rank 3 --errors shows its traceback": (
        "l on rank 3 shows its traceback",
        f"'logs {RUN} --rank 3 --errors' shows its traceback",
        f"distconsole logs {RUN} --rank 3 --errors",
    ),
    "look at the processors (distconsole top; distconsole check)": (
        "look at the processors (F2; F7)",
        "look at the processors ('top'; 'check')",
        "distconsole top",
    ),
    "distconsole check --level full": (
        "'check --level full'",
        "'check --level full'",
        "distconsole check --level full",
    ),
    "see 'distconsole check --level full'": (
        "see 'check --level full'",
        "see 'check --level full'",
        "distconsole check --level full",
    ),
    "what remains is the network: distconsole check --only net,os.hostname,coll": (
        "what remains is the network: 'check --only net,os.hostname,coll'",
        "what remains is the network: 'check --only net,os.hostname,coll'",
        "distconsole check --only net,os.hostname,coll",
    ),
    "distconsole setup --rebuild --hosts node1,node2,node3, once": (
        "'setup --rebuild --hosts node1,node2,node3', once",
        "'setup --rebuild --hosts node1,node2,node3', once",
        "distconsole setup --rebuild --hosts node1,node2,node3",
    ),
    "(distconsole check --only python --hosts node[1-4],node7:2)": (
        "('check --only python --hosts node[1-4],node7:2')",
        "('check --only python --hosts node[1-4],node7:2')",
        "distconsole check --only python --hosts node[1-4],node7:2",
    ),
    """submits it: distconsole run --slurm "--nodes=2 -t 9" -- bash train.sh '--lr;1'""": (
        """submits it: `run --slurm "--nodes=2 -t 9" -- bash train.sh '--lr;1'`""",
        """submits it: `run --slurm "--nodes=2 -t 9" -- bash train.sh '--lr;1'`""",
        """distconsole run --slurm "--nodes=2 -t 9" -- bash train.sh '--lr;1'""",
    ),
    "distconsole run -- torchrun … starts one for all": (
        "'run -- torchrun …' starts one for all",
        "'run -- torchrun …' starts one for all",
        "",
    ),
    "`distconsole run` names the interface by itself": (
        "`run` names the interface by itself",
        "`run` names the interface by itself",
        "",
    ),
    "salloc -N2 starts such a job, and in it: distconsole run -- torchrun t.py": (
        "salloc -N2 starts such a job, and in it: distconsole run -- torchrun t.py",
        "salloc -N2 starts such a job, and in it: distconsole run -- torchrun t.py",
        "distconsole run -- torchrun t.py",
    ),
    "in a job of PBS its hosts are taken by themselves: distconsole run -- mpirun ./a": (
        "in a job of PBS its hosts are taken by themselves: distconsole run -- mpirun ./a",
        "in a job of PBS its hosts are taken by themselves: distconsole run -- mpirun ./a",
        "distconsole run -- mpirun ./a",
    ),
    IN_A_SCRIPT: (IN_A_SCRIPT, IN_A_SCRIPT, "distconsole init --hosts gpu1,gpu2 --yes"),
    NO_JOB: (NO_JOB, NO_JOB, "distconsole check"),
    "sudo nvidia-smi -r": ("sudo nvidia-smi -r",) * 3,
    "export NCCL_IB_GID_INDEX=3": ("export NCCL_IB_GID_INDEX=3",) * 3,
    "sudo apt-mark hold 'nvidia-*' keeps updates away": (
        *("sudo apt-mark hold 'nvidia-*' keeps updates away",) * 2,
        "",
    ),
    "install distconsole again": (*("install distconsole again",) * 2, ""),
}
COMMANDS = re.compile(rf"\bdistconsole (?:{'|'.join(VERBS)})(?![\w-])")
NO_HINTS = ("Written by distconsole run --emit for", "distconsole check, run SCRIPT")


def texts_in_code() -> Iterator[str]:
    """Yield every text of the console with a command of ours, but docstrings; what is filled in is a 7, before an option nothing."""
    for path in Path(distconsole.__file__).parent.rglob("*.py"):
        if "distconsole " not in (source := path.read_text()):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        parts = {
            id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values
        }
        parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in parts or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            values = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(e.value) if isinstance(e, ast.Constant) else "\0" for e in values)
            text = text.replace("\0--", "--").replace("\0", "7")
            if COMMANDS.search(text) and not any(map(text.count, NO_HINTS)):
                yield text


def mistake_in(command: str, behind: str) -> str:
    """Return what is wrong with a command of ours that a text has before ``behind``."""
    if re.match(r"[\w=/-]|,\S| -|[ ,.:]*\d", behind):
        return f"{command} is cut before {behind}"
    words = shlex.split(command)[1:]
    if words in (["completion"], ["trust", "FOLDER"]):
        return ""
    try:
        parse_args(words)
    except UsageError as error:
        # A name that is to be put in, or a script.
        named = re.search(r"\bneeds?\b|[A-Z]{3}|\b7\b", error.message)
        return "" if named else f"{command}: {error.message}"
    return ""


def test_commands_in_the_code_are_found_whole_and_mean_something() -> None:
    texts = list(texts_in_code())
    assert len(texts) > 100
    for text in texts:
        found = list(command_pattern().finditer(text))
        assert len(found) == len(COMMANDS.findall(text)), text
        assert [
            wrong for each in found if (wrong := mistake_in(each[0], text[each.end() :]))
        ] == []


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_names_keys_or_lines_of_the_prompt_and_its_command_is_a_shells(hint: str) -> None:
    by_key, at_prompt, command = HINTS[hint]
    finding = Finding(check="x", severity=Severity.WARN, summary="x", hint=hint)
    assert console_hint(hint, Keymap()) == by_key
    assert console_hint(hint) == at_prompt
    assert command_of(finding) == command


def test_keys_are_those_of_the_person_and_one_that_is_taken_away_is_not_named() -> None:
    keymap = make_keymap(
        (KeySetting("W", "", "here"), KeySetting("f11", "view cluster", "here")), Config().aliases
    )
    assert console_hint(f"distconsole why {RUN} says", keymap) == f"'why {RUN}' says"
    assert console_hint("(distconsole top)", keymap) == "(F11)"


def test_what_is_typed_about_a_cure_is_its_lines() -> None:
    cure = Cure(env={"NCCL_SOCKET_IFNAME": "eth0"})
    finding = Finding(
        check="x", severity=Severity.WARN, summary="x", hint="distconsole top", cure=cure
    )
    assert command_of(finding) == "export NCCL_SOCKET_IFNAME=eth0"
