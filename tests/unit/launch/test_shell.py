"""Which commands of a shell script start ranks, and what is said of them before they do."""

import sys
from pathlib import Path

import pytest

from distconsole.errors import PlanError
from distconsole.launch.choose import decide, note_shell
from distconsole.launch.script import find_interpreter, read_traits, traits_of
from distconsole.launch.shell import read_shell
from distconsole.model.job import ScriptTraits
from distconsole.model.requests import LauncherName, Run

STARTS = [
    ("cd /src && torchrun t.py", "torchrun"),
    ("python -u -m torch.distributed.launch --use_env t.py", "torch.distributed.launch"),
    ("python3 -W ignore -um torch.distributed.run t.py", "torch.distributed.run"),
    ("python3 -um torch.distributed.run t.py", "torch.distributed.run"),
    ("$PYTHON -m torch.distributed.run t.py", "torch.distributed.run"),
    ("exec env X=1 torchrun t.py", "torchrun"),
    ("env -u X Y=2 torchrun t.py", "torchrun"),
    ("X=1 nohup torchrun \\\n  --nnodes 1 \\\n  t.py > log 2>&1 | tee log", "torchrun"),
    ("LAUNCHER='torchrun --nnodes 1'\n$LAUNCHER t.py", "torchrun"),
    ('CMD="${PYTHON:-python} -m torch.distributed.run"\n$CMD t.py', "torch.distributed.run"),
    ('A=(torchrun --nnodes 1)\nA+=(t.py)\n"${A[@]}"', "torchrun"),
    ("if a; then L=python; else L=torchrun; fi\n$L t.py", "torchrun"),
    ("L=python\nif a; then L=torchrun; fi\n$L t.py", "torchrun"),
    ("if [ -n $X ]; then\n  accelerate launch t.py\nelse\n  python t.py\nfi", "accelerate launch"),
    ("for lr in 1 2; do deepspeed t.py --lr $lr; done", "deepspeed"),
    ("until torchrun t.py; do sleep 1; done", "torchrun"),
    ("case $1 in a) x;; *) mpirun -np 2 python t.py;; esac", "mpirun"),
    ("train() {\n  horovodrun -np 2 python t.py\n}\ntrain", "horovodrun"),
    ('run() { echo "$@"; "$@"; }\nrun torchrun t.py', "torchrun"),
    ('bash -c "cd x; torchrun t.py"', "torchrun"),
    ('eval "torchrun t.py"', "torchrun"),
    ('C="torchrun t.py"\neval $C', "torchrun"),
    ("bash <<'EOF'\ntorchrun t.py\nEOF", "torchrun"),
    ("$(which torchrun) t.py", "torchrun"),
    ("python $(command -v torchrun) t.py", "torchrun"),
    ("python /opt/conda/bin/torchrun t.py", "torchrun"),
    ("/opt/bin/mpiexec.hydra -n 2 python t.py", "mpiexec.hydra"),
    ("conda run -n e torchrun t.py", "torchrun"),
    ("uv run torchrun t.py", "torchrun"),
    ("apptainer exec --nv i.sif torchrun t.py", "torchrun"),
    ("numactl -N 0 timeout 10h torchrun t.py", "torchrun"),
    ("(setsid nohup torchrun t.py < /dev/null &)", "torchrun"),
    ("[[ $x =~ ^[0-9]+$ ]] && declare -A m=([a]=1)\ntorchrun t.py", "torchrun"),
    ("ssh -oStrictHostKeyChecking=no node1 torchrun t.py", "torchrun"),
    ("ssh -i~/.ssh/id_me node1 torchrun t.py", "torchrun"),
    ("ssh -o BatchMode=yes -tt -p2222 -l me torchrun torchrun t.py", "torchrun"),
    ("ssh -fnNo BatchMode=yes node1 torchrun t.py", "torchrun"),
    ("ssh -- node1 torchrun t.py", "torchrun"),
    ("ssh node1 -p 2222 torchrun t.py", "torchrun"),
    ("bash -euo pipefail -c 'torchrun t.py'", "torchrun"),
    ("bash -c -e 'torchrun t.py'", "torchrun"),
    ("bash -ec 'torchrun t.py'", "torchrun"),
    ("bash -s 4 <<'EOF'\ntorchrun t.py\nEOF", "torchrun"),
    ("python -uW ignore -m torch.distributed.run t.py", "torch.distributed.run"),
    ("python -Xutf8 -mtorch.distributed.run t.py", "torch.distributed.run"),
    ("python -Werror::pkg.m $(which torchrun) t.py", "torchrun"),
    # None of these starts ranks.
    ("ssh -l me torchrun hostname", ""),
    ("ssh -tl me torchrun hostname", ""),
    ("ssh -oUser=me torchrun hostname", ""),
    ("ssh torchrun -p 2222 hostname", ""),
    ("ssh node1 -l torchrun hostname", ""),
    ("python -c 'print(1)' torchrun", ""),
    ("# torchrun t.py\npython t.py", ""),
    ("echo torchrun t.py", ""),
    ("command -v torchrun || pip install deepspeed\npython t.py", ""),
    ("uv pip install accelerate\nconda install deepspeed\npython t.py", ""),
    ("accelerate config\npython t.py", ""),
    ("cat > r.sh <<EOF\ntorchrun t.py\nEOF\npython t.py", ""),
    ("ip=$(srun -n1 hostname)\npython t.py", ""),
    ("python t.py --launcher torchrun", ""),
]


@pytest.mark.parametrize(("script", "starter"), STARTS)
def test_what_starts_ranks_is_found_whatever_stands_around_it(script: str, starter: str) -> None:
    found = read_shell(script)
    assert [each.name for each in found.starts[:1]] == [starter] * bool(starter)
    assert (found.unread, found.unknown) == ("", ())


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ("$LAUNCHER t.py", "what $LAUNCHER in the shell script starts is not known here"),
        (
            "bash ./elsewhere.sh",
            "what ./elsewhere.sh in the shell script starts is not known here",
        ),
        ("if true; then python t.py", "line 2 is not understood"),
        ("(" * 4000 + "\npython t.py", "is not known ("),
    ],
)
def test_a_script_that_is_not_understood_is_started_once_on_a_host_and_said(
    script: str, because: str
) -> None:
    choice = decide(
        Run("t.sh"),
        traits_of(f"#!/bin/bash\n{script}\n".replace("#!/bin/bash\nif", "if"), Path("t.sh")),
        {},
    )
    assert choice.launcher is LauncherName.SINGLE
    assert because in choice.why
    assert choice.why.endswith(": one process a node")


def test_without_the_grammar_a_script_is_started_once_on_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    choice = decide(Run("t.sh"), traits_of("#!/bin/sh\npython t.py\n"), {})
    assert choice.launcher is LauncherName.SINGLE
    assert "is not known (tree-sitter-bash is not installed here)" in choice.why


def test_what_run_gives_a_script_counts_as_its_variables() -> None:
    by_variable = Run("t.sh", env=(("L", "torchrun"),))
    by_argument = Run("t.sh", arguments=("torchrun", "t.py"))
    for request, text in ((by_variable, "$L t.py"), (by_argument, 'exec "$@"')):
        shell = traits_of(f"#!/bin/sh\n{text}\n", None, request).shell
        assert [each.name for each in shell.starts] == ["torchrun"]


def test_scripts_that_a_script_starts_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\nexec bash scripts/b.sh\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/b.sh").write_text("torchrun t.py\n")
    shell = read_traits(tmp_path / "a.sh", Run("a.sh", workdir=str(tmp_path))).shell
    assert [(each.name, each.line) for each in shell.starts] == [("torchrun", 2)]


def test_python_that_spawns_its_ranks_is_started_once_on_a_host_by_a_shell_script_too(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\npython -u t.py\n")
    (tmp_path / "t.py").write_text("import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n")
    choice = decide(Run("a.sh"), read_traits(tmp_path / "a.sh"), {})
    assert choice.launcher is LauncherName.SINGLE
    assert "starts t.py, which starts its own ranks (mp.spawn)" in choice.why
    (tmp_path / "t.py").write_text("import os\nos.system(f'cd {a} && torchrun b.py')\n")
    assert "ranks (torchrun): one" in decide(Run("a.sh"), read_traits(tmp_path / "a.sh"), {}).why


LEFT = [
    ("nohup torchrun t.py &\necho started", True),
    ("(torchrun t.py &)", True),
    ("torchrun t.py & disown", True),
    ("setsid --fork torchrun t.py", True),
    ("tmux new-session -d -s a 'torchrun t.py'", True),
    ("screen -dmS a bash -c 'torchrun t.py'", True),
    ("a && torchrun t.py &", True),
    ("{ torchrun t.py; } > log &", True),
    ("torchrun t.py &\nwait", False),
    ("torchrun t.py &\npid=$!\nwait $pid", False),
    ("torchrun t.py > log &\ntail --pid $! -f log", False),
    ("torchrun t.py &\nwhile kill -0 $!; do sleep 1; done", False),
    ("nvidia-smi -l &\ntorchrun t.py", False),
    ("nohup torchrun t.py", False),
]


@pytest.mark.parametrize(("script", "is_left"), LEFT)
def test_a_script_that_ends_before_its_training_is_refused(script: str, is_left: bool) -> None:
    traits = traits_of(f"#!/bin/bash\n{script}\n")
    if not is_left:
        assert decide(Run("t.sh"), traits, {}).launcher is LauncherName.SINGLE
        return
    with pytest.raises(PlanError, match=r"t\.sh leaves torchrun in the background \(line 2\)"):
        decide(Run("t.sh"), traits, {})
    assert traits.shell is not None
    asked = decide(Run("t.sh", launcher=LauncherName.SINGLE), traits, {})
    assert asked.launcher is LauncherName.SINGLE
    note = "torchrun (line 2) is left in the background, and ends with the script"
    assert note in note_shell(traits.shell, 1)


SAME_PORT = ", and want the same port, 29501 (--master_port)"
TWO = "torchrun (line 1) and torchrun (line 2) run beside each other on a host, as trainings of their own"


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("torchrun a.py &\ntorchrun b.py &\nwait", TWO),
        (
            "torchrun --master_port 29501 a.py &\ntorchrun --master-port=29501 b.py\nwait",
            TWO + SAME_PORT,
        ),
        ("torchrun --master-port=1 a.py &\ntorchrun b.py &\nwait", TWO),
        ("torchrun --standalone a.py &\ntorchrun --standalone a.py\nwait", TWO),
        (
            "for i in 0 1; do\n  torchrun --standalone a.py &\ndone; wait",
            "torchrun (line 2) run beside each other on a host, as trainings of their own",
        ),
        ("torchrun a.py &\nwait\ntorchrun b.py", ""),
        ("if x; then torchrun a.py & else torchrun b.py & fi; wait", ""),
        ("for h in a b; do ssh $h torchrun a.py & done; wait", ""),
    ],
)
def test_two_launchers_beside_each_other_are_said(script: str, note: str) -> None:
    notes = note_shell(read_shell(script), 1)
    assert notes == [note] * bool(note)


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("torchrun --nproc_per_node 2 t.py", "so each of 2 hosts trains for itself"),
        ("python -m torch.distributed.run t.py", "run -- python -m torch.distributed.run … makes"),
        ("mpirun -np 2 python t.py", "and each of 2 hosts starts one"),
        ("torchrun --nnodes=$NNODES --node-rank $NODE_RANK t.py", ""),
        ("torchrun --nnodes ${NNODES:-1} t.py", ""),
    ],
)
def test_a_launcher_that_does_not_join_the_hosts_is_said(script: str, part: str) -> None:
    notes = note_shell(read_shell(script), 2)
    assert [part in note for note in notes] == [True] * bool(part)
    assert note_shell(read_shell(script), 1) == []


@pytest.mark.parametrize(
    ("commands", "line"),
    [
        ("srun -N 2 python -u t.py --x '1 2'", "-- python -u t.py --x '1 2'"),
        (
            "srun --ntasks-per-node=1 torchrun --rdzv_endpoint $h:1 --nnodes=2 t.py",
            "-- torchrun --nnodes=2 t.py",
        ),
        ("x=$SLURM_NNODES\npython t.py", "-- python t.py"),
    ],
)
def test_a_job_file_of_slurm_is_answered_with_the_line_to_type(commands: str, line: str) -> None:
    head = "#!/bin/bash\n#SBATCH -N 2  # two\n#SBATCH --gpus=2\n# SBATCH --not\n"
    with pytest.raises(PlanError) as raised:
        decide(Run("job"), traits_of(head + commands), {})
    assert raised.value.hint.endswith(f'distconsole run --slurm "-N 2 --gpus=2" {line}')


def test_slurm_lines_of_a_script_that_needs_no_slurm_are_a_note() -> None:
    shell = traits_of("#!/bin/bash\n#SBATCH -N 1\ntorchrun t.py").shell
    assert shell is not None
    assert note_shell(shell, 1) == [
        "its #SBATCH lines have no effect: run --slurm OPTIONS submits a job"
    ]


@pytest.mark.parametrize(
    ("first", "ending", "words"),
    [
        ("#!/bin/bash", "", ("bash",)),
        ("#!/bin/bash -l", ".sh", ("bash", "-l")),
        ("#! /usr/bin/env -S A=1 bash -e", "", ("bash", "-e")),
        ("#!/bin/sh", ".sh", ("bash",)),
        ("#!/usr/bin/zsh", ".sh", ("/usr/bin/zsh",)),
        ("#!/usr/bin/env python3", ".sh", ()),
        ("#!/opt/bin/python3.14t -u", "", ()),
        ("import torch", "", ()),
        ("torchrun t.py", ".slurm", ("bash",)),
    ],
)
def test_the_first_line_decides_what_runs_a_script(
    first: str, ending: str, words: tuple[str, ...]
) -> None:
    assert find_interpreter(f"{first}\n", ending) == words


def test_python_stays_python_whatever_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text('#!/bin/sh\n"exec" "python3" "$0"\nimport torch\n')
    assert read_traits(tmp_path / "t.py") == ScriptTraits(here=True, readable=True, torch=True)
