"""What a finding says to do: by keys inside the console, and as a command for a shell."""

from __future__ import annotations

import pytest

from distconsole.config.schema import Config
from distconsole.config.shortcuts import KeySetting
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.tui.prompt.keymap import Keymap, make_keymap
from distconsole.tui.view_models.hints import command_of, console_hint

RUN = "ddp-1128-7af509"
HINTS = {
    f"py-spy dump --pid 7; distconsole why {RUN} shows where every rank is": (
        "py-spy dump --pid 7; W shows where every rank is",
        f"py-spy dump --pid 7; 'why {RUN}' shows where every rank is",
        f"distconsole why {RUN}",
    ),
    f"distconsole logs {RUN} --rank 3; distconsole stop {RUN}": (
        "l on rank 3; F8",
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
    "sudo nvidia-smi -r": ("sudo nvidia-smi -r",) * 3,
    "install distconsole again": ("install distconsole again",) * 3,
}


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
