"""The grammar: every verb parses to its request, wrong words are told apart, nothing is printed.
The pages of help: verbs in groups, options under headings, examples that parse, exit codes; 80 columns hold them.
"""

import re
import shlex
from pathlib import Path

import click
import pytest

from distconsole.errors import UsageError
from distconsole.grammar.completion import complete_line
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import HELP_CELLS, VERBS, parse_args, parse_line, root
from distconsole.model import requests as ask
from distconsole.model.options import HEADINGS, Heading, options_of
from distconsole.model.verbs import VERBS as TABLE
from distconsole.model.verbs import Group

CASES = [
    ("", ask.OpenConsole()),
    ("--hosts a,b", ask.OpenConsole(where=ask.Where(hosts="a,b"))),
    ("check --hosts a", ask.Check(where=ask.Where(hosts="a"))),
    (
        "check --level full --only net,coll --skip coll.x --nproc 2 --budget 2m --strict --json",
        ask.Check(
            level=ask.Level.FULL,
            only=("net", "coll"),
            skip=("coll.x",),
            nproc=2,
            budget_seconds=120.0,
            strict=True,
            json=True,
        ),
    ),
    ("check --explain net.reach", ask.Explain(check="net.reach")),
    (
        "run --nproc gpu --env A=1 --env B=x=y -m pkg.train --lr 0.1 --help",
        ask.Run(
            script="pkg.train",
            arguments=("--lr", "0.1", "--help"),
            nproc="gpu",
            env=(("A", "1"), ("B", "x=y")),
            module=True,
        ),
    ),
    (
        "run --no-sync --grace 3 train.py",
        ask.Run(script="train.py", sync=False, grace_seconds=3.0),
    ),
    (
        "run --launcher torchrun --pass-args init-method t.py",
        ask.Run(
            script="t.py", launcher=ask.LauncherName.TORCHRUN, pass_args=ask.PassArgs.INIT_METHOD
        ),
    ),
    ("run --nnodes 3 t.py", ask.Run(script="t.py", nnodes="3")),
    ("run --nnodes 2:4 t.py", ask.Run(script="t.py", nnodes="2:4", max_restarts=2)),
    (
        "run --nnodes 2:4 --max-restarts 0 t.py",
        ask.Run(script="t.py", nnodes="2:4", max_restarts=0),
    ),
    ("top --once --json", ask.Top(once=True, json=True)),
    ("runs --json", ask.Runs(json=True)),
    ("show last", ask.Show(run="last")),
    ("attach last --json", ask.Attach(run="last", json=True)),
    ("--no-startup attach r1", ask.Attach(run="r1", startup=False)),
    ("--theme dark attach r1 --theme light", ask.Attach(run="r1", theme="light")),
    ("--startup top --no-startup", ask.Top(startup=False)),
    ("demo --no-startup", ask.Demo(startup=False)),
    ("replay r1 --startup", ask.Replay(run="r1", startup=True)),
    ("--theme light --no-startup", ask.OpenConsole(theme="light", startup=False)),
    ("logs r1 --rank 3 --tail 5 -f", ask.Logs(run="r1", ranks=((3, 3),), tail=5, follow=True)),
    (
        "logs r1 --rank 0-3,8 --grep a.b --errors --fold --since 10m --stream err",
        ask.Logs(
            run="r1",
            ranks=((0, 3), (8, 8)),
            grep="a.b",
            errors=True,
            fold=True,
            since="10m",
            stream="err",
        ),
    ),
    ("stop r1 --grace 2", ask.Stop(run="r1", grace_seconds=2.0)),
    ("rerun r1 --exclude a,b --exclude c", ask.Rerun(run="r1", exclude=("a", "b", "c"))),
    ("why r1", ask.Why(run="r1")),
    ("why --hosts a,b --job 2", ask.Why(run="", where=ask.Where(hosts="a,b"), job=2)),
    ("watch --hosts a --pid 7", ask.Watch(where=ask.Where(hosts="a"), pid=7)),
    ("why --hosts --json", ask.Why(run="", jobs=True, json=True)),
    (
        "trace r1 --seconds 0.5 --ranks 0-3 --max-mib 64 --wait 5 -o t.json.gz",
        ask.Trace(
            run="r1",
            seconds=0.5,
            ranks=((0, 3),),
            max_mib=64,
            wait_seconds=5.0,
            output="t.json.gz",
        ),
    ),
    ("replay r1", ask.Replay(run="r1")),
    ("replay r1 --at 12:30", ask.Replay(run="r1", at="12:30")),
    ("compare r1 last --json", ask.Compare(runs=("r1", "last"), json=True)),
    (
        "export r1 --format csv -o x.csv",
        ask.Export(run="r1", format=ask.ExportFormat.CSV, output="x.csv"),
    ),
    (
        "export --hosts a --format prometheus --listen localhost:9400",
        ask.Export(
            run=None,
            format=ask.ExportFormat.PROMETHEUS,
            listen=("127.0.0.1", 9400),
            where=ask.Where(hosts="a"),
        ),
    ),
    (
        "export r1 -f --format csv --table ranks",
        ask.Export(
            run="r1", format=ask.ExportFormat.CSV, table=ask.ExportTable.RANKS, follow=True
        ),
    ),
    ("report r1 -o x.html", ask.ReportPage(run="r1", output="x.html")),
    ("init", ask.Init()),
    (
        "init --hosts a,b --cluster gpus --python /opt/python --yes",
        ask.Init(where=ask.Where(hosts="a,b", python="/opt/python"), cluster="gpus", yes=True),
    ),
    ("--cluster gpus init", ask.Init(cluster="gpus")),
    ("completion zsh --show", ask.InstallCompletion(shell="zsh", show=True)),
    ("doctor --hosts a --json", ask.Doctor(where=ask.Where(hosts="a"), json=True)),
    ("bench collectives", ask.BenchCollectives()),
    (
        "bench collectives --hosts a,b --launcher mpi --ops all_reduce,send_recv --sizes 4,64K,1MiB "
        "--budget 2m --nproc 2 --json",
        ask.BenchCollectives(
            where=ask.Where(hosts="a,b"),
            launcher=ask.LauncherName.MPI,
            ops=(ask.CollectiveName.ALL_REDUCE, ask.CollectiveName.SEND_RECV),
            sizes=(4, 65536, 1048576),
            nproc="2",
            budget_seconds=120.0,
            json=True,
        ),
    ),
    (
        "bench strategies --hosts a,b --only single,ddp+fp16 --rounds 5 --images 64 --batch 8 "
        "--epochs 2 --width 4 --precision bf16 --nproc gpu --json",
        ask.Bench(
            where=ask.Where(hosts="a,b"),
            only=(ask.StrategyName.SINGLE, ask.StrategyName.DDP_FP16),
            rounds=5,
            images=64,
            batch=8,
            epochs=2,
            width=4,
            precision=ask.PrecisionName.BF16,
            nproc="gpu",
            json=True,
        ),
    ),
    ("setup --hosts a", ask.Prepare(where=ask.Where(hosts="a"))),
    ("setup --rebuild -y", ask.Prepare(yes=True, rebuild=True)),
    ("demo --nodes 3 --headless", ask.Demo(nodes=3, headless=True)),
    ("demo --torch", ask.Demo(torch=True)),
    ("notify test", ask.Notify(test=True)),
    ("trust", ask.Trust()),
    ("trust clone --revoke", ask.Trust(folder="clone", revoke=True)),
    ("attach x --notify bell,webhook", ask.Attach(run="x", notify="bell,webhook")),
]


@pytest.mark.parametrize(("line", "request_"), CASES, ids=[line or "nothing" for line, _ in CASES])
def test_a_line_means_one_request(line: str, request_: ask.Request) -> None:
    assert parse_args(line.split()) == request_


def test_every_verb_is_covered_by_a_case() -> None:
    used = {line.split()[0] for line, _ in CASES if line and not line.startswith("-")}
    assert used == set(VERBS)


@pytest.mark.parametrize(
    "line", ["--hosts a,b --python /p check", "check --hosts a,b --python /p"]
)
def test_host_options_mean_the_same_before_and_after_the_verb(line: str) -> None:
    expected = ask.Check(where=ask.Where(hosts="a,b", python="/p"))
    assert parse_line(line) == expected


def test_hosts_given_with_the_verb_replace_a_cluster_given_before() -> None:
    request = parse_line("--cluster big --setup x check --hosts a")
    assert request == ask.Check(where=ask.Where(hosts="a", setup="x"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "the line is empty"),
        ("rn x.py", "Did you mean 'run'"),
        ("zzzz", "no verb 'zzzz'"),
        ("run", "SCRIPT"),
        ("run --nproc 0 x.py", "--nproc"),
        ("run --env FOO x.py", "NAME=VALUE"),
        ("check --hosts a --hostfile f", "exclude each other"),
        ("check --level deep", "deep"),
        ("check --level qick", "did you mean quick?"),
        ("bench colectives", "did you mean collectives?"),
        ("logs last --rank -1", "--rank"),
        ("stop last --grace soon", "soon"),
        ("check 'a", "quote"),
        ("check --bogus", "--bogus"),
        ("bench strategies --only ddp,fsdp", "'fsdp' is no strategy"),
        ("bench strategies --rounds 0", "--rounds"),
        ("bench strategies --sizes 4", "bench strategies has no --sizes"),
        ("bench collectives --rounds 2", "bench collectives has no --rounds"),
        ("bench collectives --ops allreduce", "'allreduce' is no collective"),
        ("bench collectives --sizes 4,2G", "'2G' is no size"),
        ("export ''", "it is empty"),
        ("export r1 --listen 0.0.0.0:9400 --format prometheus", "this machine's own"),
        ("export r1 --listen 127.0.0.1:99999 --format prometheus", "127.0.0.1:9400"),
        ("export r1 --listen 127.0.0.1:9400", "--format prometheus"),
        ("export r1 --table ranks", "--format csv"),
        ("export r1 --format tensorboard", "-o"),
    ],
)
def test_a_wrong_line_is_one_clear_error_with_exit_code_2(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(line)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.exit_code == 2
    assert capsys.readouterr() == ("", "")


def test_a_bad_environment_word_is_refused_without_repeating_its_value() -> None:
    with pytest.raises(UsageError) as caught:
        parse_line("run --env 'my-token=s3cret' x.py")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("line", ["--help", "help", "run --help", "help run", "-h", "--version"])
def test_help_is_a_request_and_nothing_is_printed(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = parse_line(line)
    assert isinstance(request, ask.ShowHelp)
    assert "distconsole" in request.text
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "continued"),
    [
        ("ch", "check"),
        ("check --le", "check --level"),
        ("check --level q", "check --level quick"),
        ("check --hosts gpu1,", "check --hosts gpu1,gpu2"),
        ("check --only net,co", "check --only net,coll"),
        ("attach d", "attach digits-1"),
        ("stop ", "stop last"),
        ("run --launcher si", "run --launcher single"),
        ("logs last --rank ", "logs last --rank 0"),
        ("--hosts g", "--hosts gpu1"),
        ("bench strategies --skip dp,horovod+m", "bench strategies --skip dp,horovod+mpi"),
    ],
)
def test_a_line_is_completed(line: str, continued: str) -> None:
    known = Vocabulary(hosts=("gpu1", "gpu2"), runs=("digits-1",), ranks=("0", "1"))
    assert continued in [completion.line for completion in complete_line(line, known)]


def test_files_complete_for_the_script_and_for_file_options(cwd: Path) -> None:
    (cwd / "train.py").touch()
    (cwd / "tests").mkdir()
    (cwd / ".hidden").touch()
    lines = [found.line for found in complete_line("run t", Vocabulary())]
    assert lines == ["run tests/", "run train.py", "run torchrun"]
    lines = [found.line for found in complete_line("check --junit tr", Vocabulary())]
    assert lines == ["check --junit train.py"]


@pytest.mark.parametrize("line", ['check "a', "run '", "zzz --x ", "run --env A", "\\"])
def test_completing_nonsense_never_fails(line: str) -> None:
    assert isinstance(complete_line(line, Vocabulary()), list)


def test_the_configuration_speaks_where_the_words_say_nothing() -> None:
    defaults = {"run": {"nproc": "gpu", "grace_seconds": 3, "env": ["A=1"]}}
    request = parse_line("run train.py", defaults=defaults)
    assert request == ask.Run(script="train.py", nproc="gpu", grace_seconds=3.0, env=(("A", "1"),))
    request = parse_line("run --nproc 2 --grace 5 train.py", defaults=defaults)
    assert (request.nproc, request.grace_seconds) == ("2", 5.0)
    with pytest.raises(UsageError, match=r"at least 0.2 s, in \[top\] of distconsole.toml"):
        parse_line("top", defaults={"top": {"interval_seconds": 0.0}})


@pytest.mark.parametrize(
    ("line", "arguments", "divided"),
    [
        ("run t.py --hosts a", ("--hosts", "a"), False),
        ("run -- t.py --hosts a", ("--hosts", "a"), True),
        ("run --nproc 2 -- t.py", (), True),
        ("run t.py -- --hosts a", ("--", "--hosts", "a"), False),
        ("run t.py t.py -- x", ("t.py", "--", "x"), False),
    ],
)
def test_a_division_before_the_script_is_remembered(
    line: str, arguments: tuple[str, ...], divided: bool
) -> None:
    request = parse_line(line)
    assert (request.script, request.arguments, request.divided) == ("t.py", arguments, divided)


COLUMNS = 80


def page(*words: str) -> str:
    shown = parse_args([*words, "--help"])
    assert isinstance(shown, ask.ShowHelp)
    return shown.text


def titles(text: str) -> list[str]:
    return re.findall(r"^(\S[^:\n]*):$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_a_page_has_two_examples_the_exit_codes_and_lines_that_fit(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    text = page(*verb.split())
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    monkeypatch.setenv("COLUMNS", "200")
    widest = max(map(len, page(*verb.split()).splitlines()))
    assert (COLUMNS if verb == "check" else 0) < widest <= HELP_CELLS
    assert titles(text)[-2:] == ["Examples", "Exit codes"]
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 2
    assert all(line.startswith(f"  distconsole {verb}".rstrip()) for line in examples)


def test_an_example_is_a_line_of_its_own_verb() -> None:
    for kind, verb in TABLE.items():
        for line in verb.examples:
            assert type(parse_args(shlex.split(line))) is kind, line


NOT_DONE = (
    "explain skip junit emit_hostfile write_profile env env_file pass_args hostfile cluster setup container slurm emit "
    "name only fail_if grep since exclude listen source"
)
"""Options without which something is not done, or not left out: no default is to be told."""


def test_an_option_says_what_holds_without_it() -> None:
    for command in (*root.commands.values(), root):
        context = click.Context(command)
        for option in command.params:
            if not isinstance(option, click.Option) or (
                option.is_flag and not option.secondary_opts
            ):
                continue
            record = option.get_help_record(context)
            if record is not None:
                told = "[default: " in record[1]
                assert told or option.name in NOT_DONE.split(), record


def test_the_first_page_has_every_verb_in_a_group() -> None:
    text = page()
    assert titles(text)[:4] == [group.value.capitalize() for group in Group]
    verbs = text[text.index("Start:") : text.index("Hosts:")]
    assert set(re.findall(r"^  (\w+) ", verbs, flags=re.MULTILINE)) == {*VERBS}


def test_the_options_of_a_launch_stand_under_headings() -> None:
    wanted = ["Common", *(each.capitalize() for each in Heading if each is not Heading.OPTIONS)]
    text = page("run")
    assert titles(text)[:-2] == wanted[: wanted.index("Output") + 1]
    common = text[text.index("Common:") : text.index("\nHosts:\n")]
    flags = re.findall(r"^  (?:-d, )?(--[a-z]+)", common, flags=re.MULTILINE)
    assert flags == ["--hosts", "--nproc", "--sync", "--detach", "--name"]
    kinds = (*TABLE, ask.Where)
    known = {name for kind in kinds for name in options_of(kind)} | {"help", "version"}
    assert [
        name for names in HEADINGS.values() for name in names.split() if name not in known
    ] == []


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("help", "--help"),
        ("help run", "run --help"),
        ("run -h", "run --help"),
        ("version", "--version"),
        ("-V", "--version"),
    ],
)
def test_help_and_version_are_asked_for_in_any_way(line: str, same: str) -> None:
    assert parse_args(line.split()) == parse_args(same.split())


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("run --nproc-per-node 2 t.py", "run --nproc 2 t.py"),
        ("run --nproc_per_node=gpu t.py", "run --nproc gpu t.py"),
        ("run --ntasks-per-node 2 -H a:2,b:2 t.py", "run --nproc 2 --hosts a:2,b:2 t.py"),
        ("run --max_restarts 3 --machinefile f t.py", "run --max-restarts 3 --hostfile f t.py"),
        ("check -H a", "check --hosts a"),
        (
            "check --nproc-per-node 2 t.py --nproc_per_node 3",
            "check --nproc 2 t.py --nproc_per_node 3",
        ),
    ],
)
def test_an_option_of_another_launcher_that_means_the_same_is_taken(line: str, same: str) -> None:
    wanted, found = parse_args(same.split()), parse_args(line.split())
    assert found == wanted


@pytest.mark.parametrize("verb", ["attach", "logs", "show", "replay", "stop", "rerun", "why"])
def test_a_run_need_not_be_named(verb: str) -> None:
    request = parse_args([verb])
    assert isinstance(request, ask.OfRun)
    assert request.run == ""


def test_what_others_call_an_option_is_neither_shown_nor_completed() -> None:
    assert "--nproc-per-node" not in page("run")
    found = [each.word for each in complete_line("run --np", Vocabulary())]
    assert found == ["--nproc"]


def test_ctrl_c_while_the_words_are_read_stays_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(root, "parse_args", press)
    with pytest.raises(KeyboardInterrupt):
        parse_args(["check"])
