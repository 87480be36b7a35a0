"""What an interpreter runs is read from its words as Python reads them, and the console's zipapp is ours by its name."""

from __future__ import annotations

import pytest

from distconsole.rpc.pack import Pack
from distconsole_agent.system.command_lines import is_ours, read_target, split_words


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("python3 train.py --lr 1", ("", "train.py", ("--lr", "1"))),
        ("python3 -uB -W ignore -Xdev train.py", ("", "train.py", ())),
        ("python3 -m torch.distributed.run t.py", ("-m", "torch.distributed.run", ("t.py",))),
        ("python3 -Imjson.tool x", ("-m", "json.tool", ("x",))),
        ("python3 -c pass -m distconsole", ("-c", "pass", ("-m", "distconsole"))),
        ("python3 --check-hash-based-pycs never - x", ("", "-", ("x",))),
        ("python3 -m", ("-m", "", ())),
        ("python3", ("", "", ())),
        ("", ("", "", ())),
    ],
)
def test_the_target_of_an_interpreter(line: str, target: tuple[str, str, tuple[str, ...]]) -> None:
    assert read_target(line.split()) == target


def test_the_words_of_a_process_keep_what_is_empty_among_them() -> None:
    assert split_words(b"sh\0-c\0\0x\0") == ("sh", "-c", "", "x")
    assert split_words(b"") == ()
    assert split_words(b"sshd: root@notty") == ("sshd: root@notty",)


def test_the_zipapp_of_the_console_is_ours() -> None:
    assert is_ours(["python3", "-E", f"/h/.cache/{Pack(b'agent').name}", "agent"])
    assert not is_ours(["vim", f"/h/{Pack(b'agent').name}.log"])
