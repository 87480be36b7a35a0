"""Claims about lines that are being typed: words, quotes, completion, mending, secrets."""

import shlex
from pathlib import Path

import pytest

from distconsole.config.spelling import mend_line
from distconsole.errors import UsageError
from distconsole.grammar.completion import complete_line
from distconsole.grammar.secrets import MASK, mask_secrets
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import parse_line
from distconsole.grammar.words import open_line, quote_word, words_of

KNOWN = Vocabulary(
    hosts=("gpu1", "gpu2", "gpu10"),
    runs=("digits-1", "mnist-2"),
    ranks=("0", "1", "2"),
    clusters=("lab",),
    checks=lambda: dict.fromkeys(("gpu", "net", "gpu.ecc"), ""),
    about={"gpu1": "of lab", "gpu.ecc": "memory that errs", "1": "node1  running"},
    fields=lambda verb: {"step_ms": "mean step"} if verb == "show" else {},
    moments=lambda run: {"start": "", "50%": "", "step 600": "of 1200"} if run else {},
)


@pytest.mark.parametrize(
    "line",
    [
        "a b",
        " a  'b c' ",
        'x "a b\\"c" d\\ e',
        "''",
        "a '' b",
        "a\\\\b",
        "--x='1 2'3",
        "a # b",
        "é 漢字 'שלום'",
    ],
)
def test_words_are_those_of_a_shell(line: str) -> None:
    assert words_of(line) == shlex.split(line, comments=True)


def test_a_hash_inside_a_word_is_part_of_it() -> None:
    assert words_of("run a#b # c") == ["run", "a#b"]


@pytest.mark.parametrize("line", ["a 'b", 'a "b', "a\\"])
def test_an_unfinished_line_has_no_words(line: str) -> None:
    with pytest.raises(ValueError, match=r"quote|backslash"):
        words_of(line)


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize(
    "text", ["a", "a b", "it's", 'say "x"', "a\\b", "$HOME;x", "#", "漢 字", ""]
)
def test_what_is_quoted_is_read_back(text: str, quote: str) -> None:
    assert words_of(f"run {quote_word(text, quote)}") == ["run", text]


@pytest.mark.parametrize(
    ("line", "continued"),
    [
        ("check --level=q", "check --level=quick"),
        ("check --hosts=gpu1,", "check --hosts=gpu1,gpu2"),
        ("check --hosts root@gpu1,root@gpu10:4,", "check --hosts root@gpu1,root@gpu10:4,gpu2"),
        ("check --hosts me@g", "check --hosts me@gpu1"),
        ("check --hosts 'gp", "check --hosts 'gpu1'"),
        ("check --cluster ", "check --cluster lab"),
        ("check --explain g", "check --explain gpu.ecc"),
        ("check --only gpu,n", "check --only gpu,net"),
        ("logs last --rank 0,", "logs last --rank 0,1"),
        ("logs last --host gpu1", "logs last --host gpu10"),
        ("rerun last --exclude g", "rerun last --exclude gpu2"),
        ("run --slurm-login g", "run --slurm-login gpu2"),
        ("show last --where st", "show last --where step_ms"),
        ("show last --fail-if 'rank=1 and st", "show last --fail-if 'rank=1 and step_ms"),
        ("check -- torchr", "check -- torchrun"),
        ("--theme d", "--theme dark"),
        ("top --theme=l", "top --theme=light"),
        ("replay last --at s", "replay last --at start"),
        ("replay digits-1 --at 'st", "replay digits-1 --at 'step 600'"),
        ("replay digits-1 --at 5", "replay digits-1 --at 50%"),
        ("distconsole stop mn", "distconsole stop mnist-2"),
        ("--hosts gpu1 check --st", "--hosts gpu1 check --strict"),
    ],
)
def test_every_place_completes(line: str, continued: str) -> None:
    assert continued in [each.line for each in complete_line(line, KNOWN)]


@pytest.mark.parametrize(
    "line", ["check --hosts gpu1,gpu1", "check # --l", "logs last --rank 0,0"]
)
def test_what_is_there_is_not_offered_again(line: str) -> None:
    assert line not in [each.line for each in complete_line(line, KNOWN)]


@pytest.mark.parametrize("line", ["run --nic ", "run --nnodes ", "check --nnodes 1"])
def test_what_is_no_file_is_not_offered_as_one(line: str, cwd: Path) -> None:
    (cwd / "1.py").touch()
    assert complete_line(line, KNOWN) == []


def test_completions_say_what_they_mean() -> None:
    about = {each.shown: each.help for each in complete_line("logs last --rank 0,", KNOWN)}
    assert about == {"1": "node1  running", "2": ""}
    assert next(each.help for each in complete_line("check --hosts gpu1", KNOWN)) == "of lab"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("run my\\ s", "run my\\ script.py"),
        ("run 'my s", "run 'my script.py'"),
        ('run "da', 'run "data dir/'),
        ("run da", "run data\\ dir/"),
        ("run data\\ dir/", "run data\\ dir/x.py"),
        ("run --env-file=my", "run --env-file=my\\ script.py"),
        ("run it", "run it\\'s.py"),
    ],
)
def test_files_are_quoted_as_the_line_has_begun_to(typed: str, completed: str, cwd: Path) -> None:
    (cwd / "data dir").mkdir()
    for name in ("my script.py", "data dir/x.py", "it's.py", "bad\x1b[31mname.py"):
        (cwd / name).touch()
    assert completed in [each.line for each in complete_line(typed, KNOWN)]
    assert not any("\x1b" in each.line for each in complete_line("run ba", KNOWN))


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("chek --level full", "check --level full"),
        ("check --leval quick", "check --level quick"),
        ("check --level=quik --strict", "check --level=quick --strict"),
        ("help chekc", "help check"),
    ],
)
def test_a_wrong_word_is_mended(line: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(line)
    assert mend_line(line, f"{caught.value.message} {caught.value.hint}") == meant


def test_of_a_condition_only_the_name_is_mended() -> None:
    line = "show last --where 'stpe_ms>1'"
    assert mend_line(line, "did you mean step_ms?") == "show last --where 'step_ms>1'"


def test_what_is_not_clear_is_not_mended() -> None:
    assert mend_line("zzz", "There is no verb 'zzz'.") is None
    assert mend_line("run x", "did you mean Frankfurt?") is None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("run --env HF_TOKEN=abc t.py", f"run --env HF_TOKEN={MASK} t.py"),
        ("run --env 'HF_TOKEN=a b' t.py", f"run --env 'HF_TOKEN={MASK}' t.py"),
        ("run --env=API_KEY=a t.py", f"run --env=API_KEY={MASK} t.py"),
        ("run t.py --api-key abc --lr 1", f"run t.py --api-key {MASK} --lr 1"),
        ("run t.py --password='x y' z", f"run t.py --password={MASK} z"),
        (
            "run --setup 'A=1 WANDB_API_KEY=\"a b\" B=2; x' t.py",
            f"run --setup 'A=1 WANDB_API_KEY={MASK} B=2; x' t.py",
        ),
        ("run t.py --url https://u:pw@h/x", f"run t.py --url https://u:{MASK}@h/x"),
        ("run t.py ghp_" + "a" * 36, f"run t.py {MASK}"),
        ("run t.py db.password=abc", f"run t.py db.password={MASK}"),
    ],
)
def test_what_looks_like_a_secret_is_masked(line: str, shown: str) -> None:
    assert mask_secrets(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "run t.py --max-tokens 10 --pad-token '<p>' --tokenizer gpt2 --sort-key a",
        "run --env NCCL_DEBUG=INFO --env MONKEY=1 t.py --token --next 3",
        "filter util<10 and host~gpu0",
        "run t.py --password=",
        "check 'open",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert mask_secrets(line) == line


def test_a_huge_line_is_split_and_masked_without_trouble() -> None:
    line = "x 'a b " + "a_token=x;" * 20_000
    assert "token=x" not in mask_secrets(line)
    assert len(open_line("'" * 100_001).words) <= 1
