"""Pasted commands: what starts a training is read from them as ``cases/pasted.json`` says, or refused in a line."""

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import UsageError
from distconsole.grammar.completion import complete_line
from distconsole.grammar.pasting.meanings import Pasted
from distconsole.grammar.pasting.read import read_command, starts_ranks
from distconsole.grammar.pasting.starters import STARTERS, starter_of
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import parse_args, parse_line
from distconsole.model import requests as ask

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "cases" / "pasted.json").read_text()
)
READ = [case for case in CASES if "says" in case]
REFUSED = [case for case in CASES if "refused" in case]


@pytest.fixture(autouse=True)
def nothing_is_said_elsewhere(home: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of accelerate's or DeepSpeed's, and no variable that a command could export."""
    monkeypatch.delenv("NCCL_DEBUG", raising=False)


@pytest.mark.parametrize("case", READ, ids=lambda case: case["command"][:60])
def test_a_command_says_what_the_case_has_and_nothing_else(case: dict[str, Any]) -> None:
    found = read_command(shlex.split(case["command"]))

    plain = Pasted()
    said = {
        each.name: getattr(found, each.name)
        for each in fields(Pasted)
        if getattr(found, each.name) != getattr(plain, each.name)
        and each.name not in ("notes", "rows")
    }
    assert json.loads(json.dumps(said)) == case["says"]
    assert case.get("rows", {}).items() <= dict(found.rows).items()
    assert any(case.get("note", "") in note for note in (*found.notes, ""))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["command"][:60])
def test_what_is_not_understood_is_named_in_one_line(case: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        read_command(shlex.split(case["command"]))
    assert case["refused"] in raised.value.message
    assert "\n" not in raised.value.message
    assert case.get("hint", "") in raised.value.hint
    assert raised.value.hint


ALIKE = [
    case
    for case in READ
    if not case["says"].get("ours") and not case["says"].get("starter", "").startswith("srun")
]
SAME = (
    "script",
    "arguments",
    "module",
    "env",
    "nproc",
    "ranks",
    "nnodes",
    "launcher",
    "pass_args",
)
SAME += ("workdir", "nic", "max_restarts", "command")


@pytest.mark.parametrize("case", ALIKE, ids=lambda case: case["command"][:60])
def test_run_and_check_understand_the_same(case: dict[str, Any]) -> None:
    words = shlex.split(case["command"])
    run = parse_args(["run", "--", *words])
    check = parse_args(["check", "--", *words])
    assert isinstance(run, ask.Run)
    assert check.target is not None
    assert [getattr(run, name) for name in SAME] == [
        getattr(check.target.run, name) for name in SAME
    ]
    assert (run.where.hosts, run.where.hostfile) == (check.where.hosts, check.where.hostfile)
    if starts_ranks(words) and words[0] != "distconsole":
        assert parse_args(["run", *words]) == run


COMMANDS = [case for case in REFUSED if starts_ranks(shlex.split(case["command"]))]
"""Not of a script, which run does not read as a command."""


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case["command"][:60])
def test_run_and_check_refuse_the_same(case: dict[str, Any]) -> None:
    words = shlex.split(case["command"])
    told = []
    for verb in ("run", "check"):
        with pytest.raises(UsageError) as raised:
            parse_args([verb, "--", *words])
        told.append((raised.value.message, raised.value.hint))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "line",
    [
        "run --workdir sub test --lr 1",
        "run --workdir sub make --lr 1",
        "run --workdir sub torchrn --lr 1",
        "run --workdir /data/of/the/hosts test --lr 1",
        "check --workdir sub test --lr 1",
        "check --workdir sub make --lr 1",
        "check --workdir sub -- torchrn --lr 1",
        "check -- cd sub '&&' nohup test --lr 1",
    ],
)
def test_a_script_may_be_called_as_a_program_is(line: str, cwd: Path) -> None:
    (cwd / "sub").mkdir()
    for name in ("test", "make", "torchrn"):
        (cwd / "sub" / name).write_text("print(1)\n")
    request = parse_args(shlex.split(line))
    run = request.target.run if isinstance(request, ask.Check) and request.target else request
    assert run.script in ("test", "make", "torchrn")
    assert run.arguments == ("--lr", "1")


@pytest.mark.parametrize("line", ["run test x", "run --workdir . test x", "check -- nohup test x"])
def test_a_program_in_place_of_a_script_is_refused_and_a_script_of_that_name_told(
    line: str, cwd: Path
) -> None:
    with pytest.raises(UsageError, match=r"^test is no launcher that is known here$") as raised:
        parse_args(shlex.split(line))
    assert "a script of that name is ./test" in raised.value.hint


def test_every_starter_has_its_own_number_of_values_for_each_option() -> None:
    for starter in map(starter_of, STARTERS.values()):
        assert all(0 <= option.values <= 2 for option in starter.options.values())
        assert not [name for name in starter.glued if name not in starter.options]


def target_of(line: str, table: dict[str, Any] | None = None) -> tuple[ask.Check, ask.Target]:
    request = parse_line(line, {"run": table or {}})
    assert request.target is not None
    return request, request.target


def test_the_script_and_all_behind_it_are_the_scripts() -> None:
    request, target = target_of("check --hosts a,b --level quick train.py --level 3 --hosts x")
    assert (request.where.hosts, request.level) == ("a,b", ask.Level.QUICK)
    assert target.run.arguments == ("--level", "3", "--hosts", "x")
    assert not target.run.divided
    assert target_of("check -- train.py --hosts x")[1].run.divided


def test_what_is_said_goes_before_the_command_and_that_before_the_configuration() -> None:
    table = {"workdir": "/table", "nproc": 8, "launcher": "mpi"}
    _, target = target_of("check --workdir /said -- torchrun --nproc_per_node 2 t.py", table)
    assert (target.run.workdir, target.run.nproc) == ("/said", "2")
    assert target.run.launcher is ask.LauncherName.TORCHRUN
    for verb in ("check", "run"):
        request = parse_line(f"{verb} --env A=1 --env C=3 -- A=2 B=2 python t.py", {})
        run = request.target.run if verb == "check" else request
        assert dict(run.env) == {"A": "1", "B": "2", "C": "3"}
        counts = "stands before the command, and counts instead of its own"
        assert [row for row in run.command.rows if counts in row] == [("--env A=1", counts)]
    _, target = target_of("check t.py", {"workdir": "/table", "nproc": "8"})
    assert (target.run.workdir, target.run.nproc) == ("/table", "8")


def test_hosts_of_the_command_count_where_none_are_given() -> None:
    command = "-- horovodrun -np 4 -H a:2,b:2 python t.py"
    assert target_of(f"check {command}")[0].where.hosts == "a:2,b:2"
    assert target_of(f"check --hosts c {command}")[0].where.hosts == "c"


@pytest.mark.parametrize("starter", ["python", "python3.11", "torchrun", "srun", "nohup python"])
def test_a_command_without_options_is_no_list_of_hosts(starter: str) -> None:
    _, target = target_of(f"check {starter} train.py")
    assert (target.run.script, target.run.arguments) == ("train.py", ())


def test_a_run_of_ours_is_read_by_its_own_grammar() -> None:
    line = "check -- distconsole run --hosts a,b --nproc 2 --env A=1 t.py --x"
    request, target = target_of(line, {"nic": "eth1"})
    assert request.where.hosts == "a,b"
    assert target.run == ask.Run(
        script="t.py",
        arguments=("--x",),
        where=ask.Where(hosts="a,b"),
        nproc="2",
        env=(("A", "1"),),
        nic="eth1",
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("check --launcher torch", "--launcher says how a SCRIPT is launched"),
        ("check -- distconsole top", "launches nothing"),
        ("check --nproc 2 -- distconsole run t.py", "stands before the command"),
        ("check -- distconsole run --bogus t.py", "--bogus"),
        ("check --env A t.py", "NAME=VALUE"),
    ],
)
def test_launch_options_without_a_launch_are_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_line(line)


def test_the_prompt_completes_files_behind_check_as_behind_run(cwd: Path) -> None:
    (cwd / "train.py").touch()
    for verb in ("run", "check", "check --level quick"):
        found = complete_line(f"{verb} tr", Vocabulary())
        assert [each.line for each in found] == [f"{verb} train.py"]
