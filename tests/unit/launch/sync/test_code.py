"""What ``--sync`` takes for code, and what it refuses."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from distconsole.errors import ConsoleError, PlanError, RunNotFoundError
from distconsole.launch.sync import code as code_module
from distconsole.launch.sync.code import Code, collect, project_root
from distconsole.launch.sync.send import KeptCode, gather, locate
from distconsole.model.names import RunId
from distconsole.model.requests import Run


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def paths(code: Code) -> set[str]:
    return {file.path for file in code.files}


def collected(root: Path) -> Code:
    return collect(root, lambda data: hashlib.sha256(data).hexdigest())


def taken(root: Path) -> set[str]:
    return paths(collected(root))


@pytest.fixture
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptCode:
    return KeptCode(tmp_path_factory.mktemp("kept") / "code")


def test_what_is_never_code_is_left_out(tmp_path: Path) -> None:
    tree(
        tmp_path,
        *("train.py", "pkg/__init__.py", "conf/a.yaml", "checkpoints/__init__.py"),
        *(".git/HEAD", "pkg/__pycache__/a.cpython-311.pyc", "env/pyvenv.cfg", "env/lib/x.py"),
        *("conda/conda-meta/history", "model.pt", "ckpt/step-1/model.bin", "wandb/run/x"),
    )
    assert taken(tmp_path) == {
        "train.py",
        "pkg/__init__.py",
        "conf/a.yaml",
        "checkpoints/__init__.py",
    }


def test_gitignore_is_honoured_and_our_own_file_has_the_last_word(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "data/x.bin", "notes.md", "fixed.pt", "sub/data/y.py", ".git/HEAD")
    (tmp_path / ".gitignore").write_text("/data/\nnotes.md\n")
    (tmp_path / "sub" / ".gitignore").write_text("data\n")
    (tmp_path / ".distconsoleignore").write_text("!notes.md\n!fixed.pt\n!.git\n/.gitignore\n")
    assert taken(tmp_path) == {
        *("train.py", "notes.md", "fixed.pt"),
        *("sub/.gitignore", ".distconsoleignore"),
    }


def test_what_git_tracks_all_the_same_is_code(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "data/kept.csv", "data/big.csv", "data/deep/kept.txt", "mine.log")
    (tmp_path / ".gitignore").write_text("data/\n*.log\n")
    (tmp_path / ".distconsoleignore").write_text("*.txt\n")
    inside = tree(tmp_path / "data/sub", "data/x.csv", "kept.pyc")  # as a submodule
    (inside / ".gitignore").write_text("*.pyc\nrest\n!my.log\n")
    commit_all(inside)
    (inside / ".git/info/exclude").write_text("my.log\n")  # counts before .gitignore
    tree(inside, "rest", "my.log", "a.txt")
    for words in (
        ("init", "-q"),
        ("add", "-f", "data/kept.csv", "data/deep/kept.txt", "data/sub", "mine.log"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    ours = {".gitignore", ".distconsoleignore", "data/sub/.gitignore"}
    ours |= {"data/sub/data/x.csv", "data/sub/kept.pyc", "data/sub/my.log"}
    assert taken(tmp_path) == {"train.py", "data/kept.csv", "mine.log", *ours}


def commit_all(root: Path) -> str:
    person = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-f", "."), (*person, "commit", "-qm", root.name)):
        subprocess.run(["git", *words], cwd=root, check=True)
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True)
    return said.stdout.decode().strip()


def test_the_commit_is_of_the_work_tree_whatever_repository_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = tree(tmp_path / "ours", "train.py", "kept.log"), tree(tmp_path / "other", "x.py")
    (ours / ".gitignore").write_text("*.log\n")
    commit = commit_all(ours)
    commit_all(other)
    for name, place in {
        "DIR": "",
        "COMMON_DIR": "",
        "OBJECT_DIRECTORY": "objects",
        "INDEX_FILE": "index",
    }.items():
        with monkeypatch.context() as variables:
            variables.setenv(f"GIT_{name}", str(other / ".git" / place))
            variables.setenv("GIT_WORK_TREE", str(other))
            code = collected(ours)
        assert (code.commit, paths(code)) == (commit, {"train.py", "kept.log", ".gitignore"}), name


@pytest.mark.parametrize(
    ("change", "suffix"),
    [
        ("true", ""),
        ("echo x=1 > new.py", "-dirty"),
        ("ln -s train.py new.py", "-dirty"),
        ("git config filter.own.clean false; echo x=1 > new.py", "-dirty"),
        ("echo x > data/new.bin; echo *.md > .distconsoleignore", ""),
        ("echo x >> train.py", "-dirty"),
        ("echo x > sub/y.py", "-dirty"),
        ("echo x >> sub/x.py", "-dirty"),
        ("rm -r sub/.git; echo x >> sub/x.py", "-dirty"),
        ("git -C sub config filter.own.clean false", "-unknown"),
        ("git update-index --skip-worktree train.py; echo x >> train.py", "-unknown"),
        ("git -C sub update-index --assume-unchanged x.py; echo x >> sub/x.py", "-unknown"),
    ],
)
def test_a_copy_with_a_file_that_git_does_not_track_is_not_the_commit(
    change: str, suffix: str, tmp_path: Path
) -> None:
    root = tree(tmp_path / "ours", "train.py", "a é.py", "sub/x.py")
    (root / ".gitignore").write_text("/data/\n")
    (root / "data").mkdir()
    commit_all(root / "sub")
    commit = commit_all(root)
    subprocess.run(["sh", "-ec", change], cwd=root, check=True)
    assert collected(root).commit == commit + suffix


@pytest.mark.parametrize("old", [False, True])
def test_no_program_that_the_settings_of_a_project_name_is_started(
    tmp_path: Path, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old:  # Git before 2.26
        real, folder = shutil.which("git"), tmp_path / "bin"
        refuse = 'case " $* " in *" --show-scope "*) exit 129 ;; esac'
        tree(folder, "git").joinpath("git").write_text(f'#!/bin/sh\n{refuse}\nexec {real} "$@"\n')
        (folder / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    root, mark, program = tree(tmp_path / "p", "train.py"), tmp_path / "mark", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    (root / ".gitignore").write_text("*.py\n")
    (root / ".gitattributes").write_text("* filter=own diff=own\n")
    commit_all(root)
    subprocess.run(["git", "update-index", "--fsmonitor"], cwd=root, check=True)
    names = ("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external")
    more = (
        "filter.own.clean",
        "filter.own.process",
        "diff.own.textconv",
        "remote.origin.uploadpack",
    )
    for name in (*names, *more, "alias.ls-files"):
        subprocess.run(["git", "config", name, f"{program}"], cwd=root, check=True)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (root / ".git" / "hooks" / hook).unlink(missing_ok=True)
        (root / ".git" / "hooks" / hook).symlink_to(program)
    (root / "train.py").write_text("changed")
    subprocess.run(["git", "status"], cwd=root, check=False, capture_output=True)
    assert mark.exists()
    mark.unlink()
    monkeypatch.setenv("GIT_CONFIG", "/dev/null")  # from which `git config` alone would read
    code = collected(root)
    assert "train.py" in paths(code)
    assert code.commit.endswith("-unknown")
    assert not mark.exists()


def test_modes_empty_folders_and_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    tree(tmp_path, "run.sh", "train.py")
    (tmp_path / name).write_text("1")
    (tmp_path / "run.sh").chmod(0o750)
    (tmp_path / "logs").mkdir()
    code = collected(tmp_path)
    assert {file.path: file.mode for file in code.files}["run.sh"] == 0o750
    assert code.folders == ("logs",)
    assert paths(code) == {"run.sh", "train.py", name}
    assert b"\\udce9" in code.manifest()


def test_a_file_that_is_gone_before_it_is_read_is_left_out(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "z.tmp", "z/y")
    code = collect(tmp_path, lambda _: str((tmp_path / "z.tmp").unlink(missing_ok=True)))
    assert paths(code) == {"a.py", "z/y"}


def test_links_inside_stay_links_and_a_file_elsewhere_is_brought_by_a_rule(tmp_path: Path) -> None:
    root, outside = tree(tmp_path / "p", "a/real.py"), tree(tmp_path / "o", "other.py")
    (root / "link.py").symlink_to("a/real.py")
    (root / "a" / "absolute.py").symlink_to(root / "a" / "real.py")
    (root / "folder").symlink_to("a")
    (root / "dangling").symlink_to("nothing")
    (root / "followed.py").symlink_to(outside / "other.py")
    (root / ".distconsoleignore").write_text("!/followed.py\n/.distconsoleignore\n")
    code = collected(root)
    assert code.links == (
        ("a/absolute.py", "real.py"),
        ("dangling", "nothing"),
        ("folder", "a"),
        ("link.py", "a/real.py"),
    )
    assert paths(code) == {"a/real.py", "followed.py"}


def test_a_rule_in_a_file_that_git_tracks_brings_nothing_from_elsewhere(tmp_path: Path) -> None:
    root, outside = tree(tmp_path / "p", "train.py"), tree(tmp_path / "o", "key")
    (root / "notes").symlink_to(outside / "key")
    (root / ".distconsoleignore").write_text("!/notes\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    assert "notes" in taken(root)
    subprocess.run(["git", "add", ".distconsoleignore"], cwd=root, check=True)
    with pytest.raises(PlanError, match="link notes leads out") as refused:
        collected(root)
    assert "no rule brings it while Git tracks .distconsoleignore" in refused.value.hint
    shutil.rmtree(root / ".git")
    for repository in ("", "gitdir: /nonexistent"):  # where Git cannot say whether it tracks it
        (root / ".git").write_text(repository)
        with pytest.raises(PlanError, match="link notes leads out"):
            collected(root)


@pytest.mark.parametrize(
    "rules",
    ["", "!/data.txt\n/data.txt\n", "!other\n", "!data\n", "!/dat?\n", "!*\n", "!/data\n!d*\n"],
)
@pytest.mark.parametrize("target", ["o", "o/x", "o/none"])
def test_a_link_to_elsewhere_is_an_error_that_says_what_to_do(
    tmp_path: Path, target: str, rules: str
) -> None:
    root = tree(tmp_path / "p", "train.py")
    tree(tmp_path / "o", "x")
    (root / "data").symlink_to(tmp_path / target)
    (root / ".gitignore").write_text("!/data\n")
    (root / ".distconsoleignore").write_text(rules)
    said = f"link data leads out of the project, to {tmp_path / target}$"
    with pytest.raises(PlanError, match=said) as refused:
        collected(root)
    assert "echo '/data' >>" in refused.value.hint
    assert ("'!/data'" in refused.value.hint) == (target == "o/x")


@pytest.mark.parametrize(
    ("limit", "value", "names"),
    [
        ("MAX_FILE_BYTES", 50, ("big.bin (120 B)", "files of more than")),
        ("MAX_BYTES", 120, ("big.bin", "in all")),
        ("MAX_FILES", 2, ("more than 2 files", "many/ (")),
    ],
)
def test_what_is_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, names: Iterable[str]
) -> None:
    tree(tmp_path, "many/1", "many/2", "train.py")
    (tmp_path / "big.bin").write_bytes(b"0" * 120)
    monkeypatch.setattr(code_module, limit, value)
    with pytest.raises(PlanError) as refused:
        collected(tmp_path)
    for name in names:
        assert name in refused.value.message
    assert ".distconsoleignore" in refused.value.hint


@pytest.mark.parametrize("whole", ["HOME", "TMPDIR"])
def test_the_project_is_the_git_work_tree_or_the_scripts_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    monkeypatch.setenv(whole, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    inner = tmp_path / "p" / "a" / "b"
    inner.mkdir(parents=True)
    assert project_root(inner) == inner
    # A home under Git has dotfiles, /tmp has files of all sorts.
    (tmp_path / ".git").mkdir()
    assert project_root(inner) == inner
    (tmp_path / "p/a/pyproject.toml").touch()
    assert project_root(inner) == tmp_path / "p/a"
    (tmp_path / "p" / ".git").mkdir()
    assert project_root(inner) == tmp_path / "p"


def test_a_whole_home_is_not_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: KeptCode
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tree(tmp_path, "train.py")
    with pytest.raises(PlanError, match="would bring all of"):
        gather(Run("train.py", sync=True), tmp_path, kept)


def test_a_script_that_is_missing_or_left_out_is_refused(tmp_path: Path, kept: KeptCode) -> None:
    with pytest.raises(PlanError, match=r"train\.py does not exist on this machine"):
        gather(Run("train.py", sync=True), tmp_path, kept)
    tree(tmp_path, "a/b/c/train.py", ".git/HEAD")
    (tmp_path / ".gitignore").write_text("b/\nc/\ntrain.*\n")
    for left in ("a/b", "a/b/c", "a/b/c/train.py"):
        with pytest.raises(PlanError, match=f"leaves out {left}, and so the script") as caught:
            gather(Run("a/b/c/train.py", sync=True), tmp_path, kept)
        assert caught.value.hint.startswith(f"bring it: echo '!/{left}' >>")
        subprocess.run(caught.value.hint.removeprefix("bring it: "), shell=True, check=True)
    assert "a/b/c/train.py" in paths(gather(Run("a/b/c/train.py", sync=True), tmp_path, kept))
    tree(tmp_path, "a/b/c/pyvenv.cfg")
    with pytest.raises(PlanError, match="leaves out a/b/c, and so the script"):
        gather(Run("a/b/c/train.py", sync=True), tmp_path, kept)


@pytest.mark.parametrize(
    ("here", "request_", "script", "folder", "noted"),
    [
        ("p", Run("t.py"), "{run_dir}/code/t.py", "{run_dir}/code", False),
        ("p/a", Run("../t.py"), "{run_dir}/code/t.py", "{run_dir}/code/a", False),
        ("p", Run("a/t.py", workdir="a/.."), "{run_dir}/code/a/t.py", "{run_dir}/code", False),
        ("", Run("p/t.py"), "{run_dir}/code/t.py", "{run_dir}/code", True),
        ("", Run("t.py", workdir="p"), "{run_dir}/code/t.py", "{run_dir}/code", False),
        ("p", Run("pkg.t", module=True), "pkg.t", "{run_dir}/code", False),
    ],
)
def test_the_ranks_start_in_the_same_folder_of_the_copy(
    tmp_path: Path, here: str, request_: Run, script: str, folder: str, noted: bool
) -> None:
    root = tmp_path / "p"
    on_node, workdir, note = locate(request_, tmp_path / here, root)
    assert (on_node, workdir, bool(note)) == (script, folder, noted)


def test_what_a_run_had_is_kept_as_it_was_or_said_to_be_gone_or_damaged(
    tmp_path: Path, kept: KeptCode
) -> None:
    tree(tmp_path, "train.py", "empty.py")
    (tmp_path / "empty.py").write_text("")
    code = gather(Run("train.py", sync=True), tmp_path, kept)
    kept.note(RunId("run-1"), code)
    (tmp_path / "train.py").write_text("changed since")
    again = kept.of_run(RunId("run-1"))
    assert again == code
    (train,) = [file for file in again.files if file.path == "train.py"]
    assert kept.read(train.sha256) == b"train.py"
    (kept.folder / train.sha256[:2] / train.sha256[2:]).write_text("rotten!!")
    with pytest.raises(ConsoleError, match="damaged"):
        kept.read(train.sha256)
    for run in ("run-1", "run-2"):
        with pytest.raises(RunNotFoundError, match="is gone"):
            kept.of_run(RunId(run))
