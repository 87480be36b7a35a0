"""What a newcomer types wrongly: each line has a message, a cure and an exit code, and no traceback.

Nothing here starts a rank, and but for a plan nothing reaches a host: the answer comes before that.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from distconsole.__main__ import run
from distconsole.config.paths import user_config_file
from fakes.agents import AgentNode

HELP = "--help'"
HERE = "such as: gpu[01-08]"

VERBS = [
    ("rn train.py", "no verb 'rn'. Did you mean 'run'?", HELP),
    ("zzzz", "no verb 'zzzz'", HELP),
    ("RUN train.py", "Did you mean 'run'?", HELP),
    ("train.py", "Did you mean 'run train.py'?", HELP),
    ("'run train.py'", "Did you mean 'run train.py'?", HELP),
    ("torchrun", "torchrun without a script", "such as: torchrun train.py"),
    ("accelerate launch", "accelerate without a script", "such as: accelerate launch train.py"),
    ("accelerate config", "accelerate config starts no training", "accelerate launch train.py"),
    ("deepspeed --num_gpu 4 t.py", "deepspeed has no option --num_gpu", "mean --num-gpus?"),
    ("sbatch job.sh", "what sbatch would start is not known", '--slurm "OPTIONS"'),
    ("uv run torchrun t.py", "what uv would start is not known", "--python PATH of its python"),
    ("axolotl train x.yml", "what axolotl would start", "accelerate launch -m axolotl.cli.train"),
    ("cd folder", "cd starts no training", "the command alone"),
    ("kill last", "Did you mean 'stop'?", HELP),
    ("status", "Did you mean 'runs'?", HELP),
    ("nodes", "Did you mean 'top'?", HELP),
    ("help zzzz", "no verb 'zzzz'", HELP),
    ("-x", "has no option -x", HELP),
    ("--hots a check", "has no option --hots", "did you mean --hosts?"),
    ("--nproc 2 train.py", "has no option --nproc", "stand behind it: distconsole check --nproc"),
    ("--theme x runs", "--theme is of the console", HELP),
    ("runs extra", "takes no further words: extra", "did you mean `--hosts extra`?"),
    ("show a b", "takes no further words: b", "compare b RUN compares several"),
    ("runs failed", "takes no further words: failed", "`distconsole runs --where state=failed`?"),
    ("logs last 3", "takes no further words: 3", "mean `distconsole logs last --rank 3`?"),
    ("demo extra", "takes no further words: extra", HELP),
]
SCRIPTS = [
    ("run", "run needs SCRIPT", "such as: distconsole run --hosts"),
    ("run missing.py", "missing.py does not exist", "give its path, or --module"),
    ("run trian.py", "trian.py does not exist", "did you mean train.py?"),
    ("run 'train.py --epochs 3'", "--epochs 3 does not exist", "did you mean train.py?"),
    ("run python trian.py", "trian.py does not exist", "did you mean train.py?"),
    ("run torchrn train.py", "torchrn is no command", "did you mean torchrun?"),
    ("run distconsole run train.py", "distconsole run stands in place of the script", "leave it"),
    ("run torchrun --role a train.py", "torchrun --role a: ranks have the role", "leave it out"),
    ("run torchrun '$ARGS' train.py", "nothing has replaced the variable $ARGS", "what it holds"),
    ("run mpirun -np 2 --bind-to core python t.py", "mpirun --bind-to core: ranks", "leave it"),
    ("run accelerate launch --tpu train.py", "accelerate --tpu: TPUs are not", "by accelerate"),
    ("run accelerate launch --config_file no.yaml t.py", "no.yaml cannot be read", "this machine"),
    ("run conda run -n x python train.py", "what conda would start is not known", "--python PATH"),
    ("run -m torch.distributed.launch --nproc_per_node x t.py", "x is not a number", "such as: 2"),
    ("run --module train.py", "train.py is a file", "`--module train`? for the file, leave"),
    ("run -m ./pkg/train.py", "takes the name of a module", "`--module pkg.train`?"),
    ("run train", "train does not exist", "did you mean train.py?"),
    ("run pkg.train", "pkg.train does not exist", "did you mean --module pkg.train?"),
    ("run pkg", "pkg is a folder without __main__.py", "did you mean pkg/train.py?"),
    ("run '$HOME/train.py'", "does not exist", "leave the single quotes out"),
    ("run '~/mine.py'", "~/mine.py does not exist", "/mine.py? a shell replaces ~ only outside"),
    ("run notes.ipynb", "notes.ipynb is a notebook", "jupyter nbconvert --to script notes.ipynb"),
    ("run folder", "folder is a folder without __main__.py", "give its path"),
    ("run program", "program is a program and no Python script", "a script that starts it"),
    ("run ''", "SCRIPT is empty", "a variable that is not set?"),
    ("run -- torchrun ' '", "SCRIPT is empty", "a blank behind a line's last backslash?"),
    ("check –level quick", "–level does not begin with the hyphen", "a page or a text program"),
    ("run --sync –hosts a train.py", "–hosts does not begin with the hyphen", "- or -- by hand"),
    ("run train.py --nproc 2", "--nproc stands behind the script", "put it before the script"),
    ("run --slurm -N2 train.py --nproc 2", "--nproc stands behind the script", "put it before"),
    ("run --workdir /no/such train.py", "the folder /no/such of --workdir does not exist", "one"),
    ("check -- torchrun", "torchrun without a script", "such as: torchrun train.py"),
    ("check run train.py", "run is no command that is known here", "mean distconsole run?"),
    ("check -- docker run x", "what docker would start is not known", "the command below it"),
    ("check -- python -c 'print(1)'", "has no script to check", "put the text into a file"),
    ("check -- 'torchrun \"a'", "cannot be split", "close the quote"),
    ("check -- torchrun --nproc_per_nod 2 t.py", "no option --nproc_per_nod", "--nproc-per-node?"),
    ("check --launcher torch", "--launcher says how a SCRIPT is launched", HELP),
]
OPTIONS = [
    ("run --bogus train.py", "run has no option --bogus", HELP),
    ("run --lancher torch train.py", "has no option --lancher", "did you mean --launcher?"),
    ("logs last --nproc 2", "logs has no option --nproc", "is an option of check, run"),
    ("run --launcher", "'--launcher' requires an argument", "run --help"),
    ("run --launcher torhc train.py", "'torhc' is not one of", "did you mean torch?"),
    ("run --launcher deepspeed train.py", "'deepspeed' is not one of 'auto', 'torch'", HELP),
    ("run --nproc 0 train.py", "'0' is not a whole number from 1, or 'gpu'", HELP),
    ("run --nproc two train.py", "'two' is not a whole number", HELP),
    ("run --nproc_per_node x train.py", "'--nproc': 'x' is not a whole number", HELP),
    ("run --nnodes 3:2 train.py", "'3:2' is not a whole number from 1, or 'MIN:MAX'", HELP),
    ("run --nnodes 3 train.py", "--nnodes 3 means 3 hosts, and there is 1", "name 3 with --hosts"),
    ("run --env FOO train.py", "'FOO' must be given as NAME=VALUE", HELP),
    ("run --env-file missing train.py", "--env-file missing cannot be read", "NAME=value lines"),
    ("run --env-file variables train.py", "variables:2: not NAME=value", "one variable a line"),
    ("run --env-file folder train.py", "'folder' is a directory", HELP),
    ("run --max-restarts -1 train.py", "'-1' is not a whole number from 0 to 1,000", HELP),
    ("run --grace soon train.py", "'soon' is not a duration such as 10, 1.5 or 2m", HELP),
    ("run --lost-after 1 train.py", "'1' is too short: at least 5 s", HELP),
    ("run --log-limit 5 train.py", "'5' is too little: give at least 1MB", HELP),
    ("run --verify-sync 0 train.py", "'0' is not a whole number from 1", HELP),
    ("run --notify pigeon train.py", "'pigeon' is none of bell, desktop", HELP),
    ("run --emit sbach train.py", "'sbach' is not one of", "did you mean sbatch?"),
    ("check --level qick", "'qick' is not one of", "did you mean quick?"),
    ("check --only gpus", "--only gpus: no check begins with that", "did you mean gpu?"),
    ("check --only nosuch", "--only nosuch: no check begins with that", "the groups are: clock"),
    ("check --skip zzz", "--skip zzz: no check begins with that", "the groups are: clock"),
    ("check --only ''", "it is empty; groups are ssh os", HELP),
    ("check --explain zzz", "there is no check zzz", "groups are: "),
    ("check --explain net.rech", "there is no check net.rech", "did you mean net.reach"),
    ("check --budget -1", "'-1' is not a duration", HELP),
    ("check --budget 0", "'0' is too short: at least 1 s", HELP),
    ("top --interval 0", "'0' is too short: at least 0.2 s", HELP),
    ("check --write-profile train.py", "train.py: not a .toml file", "put another option behind"),
    ("bench", "bench needs {collectives|strategies}", "such as: distconsole bench"),
    ("bench colectives", "'colectives' is not one of", "did you mean collectives?"),
    ("bench strategies --only fsdp", "'fsdp' is no strategy; there are: single, dp", HELP),
    ("bench collectives --sizes 2G", "'2G' is no size from 4 to 1G", HELP),
    ("bench collectives --rounds 2", "bench collectives has no --rounds", HELP),
    ("demo --nodes 99", "'99' is not a whole number from 1 to 8", HELP),
    ("notify tset", "'tset' is not 'test'", "did you mean test?"),
    ("trust folder", "no distconsole.toml to trust in", "nothing need be trusted"),
    ("trust train.py", "'train.py' is a file", HELP),
]
OTHER_LAUNCHERS = [
    ("run -np x train.py", "'--ranks': 'x' is not a whole number from 1", HELP),
    ("run -hostfile hosts train.py", "run has no option -hostfile", "did you mean --hostfile?"),
    ("run -N 2 train.py", "run has no option -N", "--nproc N (of mpirun); --nnodes N (of srun)"),
    ("run --master_addr a train.py", "no option --master-addr", "meet on the first host"),
    ("run --rdzv-endpoint a:1 train.py", "no option --rdzv-endpoint", "meet on the first host"),
    ("run --node_rank 0 train.py", "run has no option --node-rank", "leave it out"),
    ("run --gpus-per-node 4 train.py", "no option --gpus-per-node", '--slurm "--gpus-per-node …"'),
    ("run --gres=gpu:4 train.py", "run has no option --gres", '--slurm "--gres …"'),
    ("run -x PATH train.py", "run has no option -x", "--env NAME=VALUE (of mpirun)"),
    ("run --mca btl tcp train.py", "run has no option --mca", "--env OMPI_MCA_NAME=VALUE"),
    ("run --min-np 2 train.py", "run has no option --min-np", "--nnodes MIN:MAX"),
    ("run --num_gpus 4 train.py", "has no option --num-gpus", "here: --nproc N"),
    ("run --num_machines 2 train.py", "no option --num-machines", "here: --nnodes N"),
    ("run --machine_rank 0 train.py", "no option --machine-rank", "leave it out"),
    ("run --include a:0 train.py", "has no option --include", "here: --hosts, and --env CUDA"),
    ("run --deepspeed c.json train.py", "no option --deepspeed", "behind the script"),
    ("run --gpus 4 train.py", "no option --gpus", "--ranks N, or --nproc N for each host"),
    ("run --executor slurm train.py", "has no option --executor", '--slurm "OPTIONS of sbatch"'),
    ("run --user me --hosts a train.py", "has no option --user", "USER@HOST in --hosts"),
    ("check --port 2222", "check has no option --port", "HOST/PORT in --hosts"),
    ("run --conda-env x train.py", "no option --conda-env", "--python PATH of its python"),
    ("run --background train.py", "has no option --background", "here: --detach"),
    ("show --last", "show has no option --last", "is called last: distconsole show last"),
    ("runs --state failed", "runs has no option --state", HELP),
    ("run --slurm train.py", "run needs SCRIPT", "--slurm took train.py for its value"),
    ("run --allow-run-as-root train.py", "no option --allow-run-as-root", "leave it out"),
]
HOSTS = [
    ("check node1 node2", "there is no script node1 here", "did you mean `--hosts node1,node2`?"),
    ("check 'gpu[01-08]'", "no script gpu[01-08] here", "did you mean `--hosts gpu[01-08]`?"),
    ("check --level quick me@a:4", "no script me@a:4 here", "did you mean `--hosts me@a:4`?"),
    ("run node1 node2 train.py", "node1 does not exist", "`--hosts node1,node2 train.py`?"),
    ("top node1 node2", "takes no further words: node1 node2", "`--hosts node1,node2`?"),
    ("check --hosts a --hostfile hosts", "--hosts and --hostfile exclude each other", HELP),
    ("run --hosts a --hosts b train.py", "given 2 times, not once: --hosts a,b", HELP),
    ("check -H a --hosts b", "given 2 times, not once: --hosts a,b", HELP),
    ("check --hosts ''", "--hosts names no host", "a variable that is not set?"),
    ("check --hosts ,", "entry 1 of 2 in ',' is empty: a comma too many", HERE),
    ("check --hosts a,a", "--hosts names a twice", "for more ranks on it: a:N"),
    ("check --hosts 'a b'", "'a b' in 'a b' is not a host", "did you mean --hosts a,b?"),
    ("check --hosts gpu1 gpu2", "gpu2 stands behind --hosts gpu1", "`--hosts gpu1,gpu2`?"),
    ("run --hosts a b train.py", "b stands behind --hosts a", "`--hosts a,b train.py`?"),
    ("check --hosts me@a:2222", "'2222' is not a number of slots", "behind a slash: me@a/2222"),
    ("check --hosts '$HOSTS'", "'$HOSTS' is not a host", "leave the single quotes out"),
    ("check --hosts @hosts", "is not a user", "did you mean --hostfile hosts?"),
    ("check --hosts ./hosts", "is not a port", "did you mean --hostfile ./hosts?"),
    ("check --hosts a:gpu", "'gpu' is not a number of slots", HERE),
    ("check --hosts 'a;rm -rf'", "'a;rm -rf' is not a host", HERE),
    ("check --hosts 'gpu[01-'", "a bracket is not closed in 'gpu[01-'", HERE),
    ("check --hosts 'gpu[9-1]'", "the range 9-1 in 'gpu[9-1]' runs backwards", HERE),
    ("check --hosts 'gpu[1-99999999]'", "stands for more than 4096 hosts", HERE),
    ("check --hosts a:0", "'0' is not a number of slots (1 to 1024)", HERE),
    ("check --hosts a/99999", "'99999' is not a port", HERE),
    ("check --hosts 'us er@a'", "'us er' in 'us er@a' is not a user", HERE),
    ("check --hostfile missing", "missing: No such file", "--hostfile names a list of hosts"),
    ("check --hostfile folder", "'folder' is a directory", HELP),
    ("check --hostfile hosts", "hosts:2: 'x' is not a number of slots", "gpu01 slots=4"),
    ("check --hostfile none", "none: names no host", "one host a line"),
    ("check --hostfile twice", "twice:2: a is there already, in line 1", "a slots=N"),
    ("check --hostfile program", "is not a host", "one host a line"),
    ("check --cluster lab", "there is no [clusters.lab] (no distconsole.toml", "[clusters.NAME]"),
    ("check --ssh-config missing", "missing: there is no such file", "leave it out for ssh's own"),
]
RUNS = [
    ("show", "there are no runs yet", "distconsole run SCRIPT makes one"),
    ("attach", "there are no runs yet", "--hosts … finds a run"),
    ("show nosuch", "there is no run nosuch", ""),
    ("logs nosuch", "there is no run nosuch", "--hosts … finds a run"),
    ("show ''", "'[RUN]': it is empty", HELP),
    ("show ../../etc/passwd", "there is no run ../../etc/passwd", ""),
    ("stop", "stop needs a RUN", "distconsole runs lists"),
    ("rerun", "rerun needs a RUN", "distconsole runs lists"),
    ("replay", "the console needs a terminal", "what works without: distconsole show"),
    ("compare", "compare needs RUN", "such as: distconsole compare last"),
    ("logs last --rank 3-1", "'3-1' ends before it begins", HELP),
    ("logs last --grep '['", "'[' is not a regular expression", HELP),
    ("logs last --since never", "'never' is not a time: 90s, 10m", HELP),
    ("logs last --tail x", "'x' is not a whole number from 0", HELP),
    ("stop last --grace x", "'x' is not a duration", HELP),
    ("runs --where state=", "something is missing, at character 7", "state="),
    ("runs --where stat=failed", "runs have no field 'stat'", "did you mean state?"),
    ("show last --fail-if '1 +'", "something is missing", "1 +"),
    ("top --where 'util<10'", "--where goes with --once; in the console 'filter", HELP),
    ("top --once --where 'utl<1'", "hosts and GPUs have no field 'utl'", "did you mean util?"),
    ("export last --format cvs", "'cvs' is not one of", "did you mean csv?"),
    ("export last --format prometheus --listen 0.0.0.0:94", "not this machine's own", HELP),
    ("export last --format prometheus --listen x", "not ADDRESS:PORT such as 127.0.0.1:94", HELP),
    ("export last --format tensorboard", "--format tensorboard writes a folder", "export --help"),
]
WITHOUT_EFFECT = [
    ("check --write-profile --no-prove", "cures that were proven: it goes without --no-prove"),
    ("check --explain gpu --json", "--json goes without --explain"),
    ("run -o job.sh train.py", "--output goes with --emit"),
    ("run --slurm-login a train.py", "--slurm-login goes with --slurm"),
    ("run --verify-sync 9 --no-watch train.py", "--verify-sync needs the hook"),
    ("run --detach --notify bell train.py", "--notify goes without --detach"),
    ("rerun last -d --notify bell", "--notify goes without --detach"),
    ("top --fail-if 'util<10'", "--fail-if goes with --once"),
    ("top --once --interval 5", "--interval goes without --once"),
    ("top --json --theme dark", "--theme is of the console, which does not open here"),
    ("attach --json --no-startup", "--startup is of the console"),
    ("demo --headless --theme dark", "--theme is of the console"),
    ("export last --table ranks", "--table goes with --format csv"),
    ("export last --listen 127.0.0.1:9400", "--listen goes with --format prometheus"),
    ("export last --interval 5", "--interval goes with --format prometheus"),
    ("export last --format prometheus --interval 5", "--interval goes with --follow or --listen"),
    ("doctor --python python3.12", "--python is about hosts: name them"),
]
CONFIGURATIONS = [
    ("broken = ", "distconsole.toml: not TOML", "texts need quotes"),
    ("[run\n", "not TOML: Expected ']'", "tables begin with [name]"),
    ("a = 1\na = 2", "not TOML: Cannot overwrite a value", "may stand there once"),
    ("[run]\nsync = True", "not TOML: Invalid value (at line 2", "true and false none"),
    ("run:\n  nproc: 2", "not TOML: Expected '='", "texts need quotes"),
    ("\ufeff[run]\nnprco = 2", ":2: unknown key 'nprco' in [run]", "mean 'nproc'?"),
    ("hosts = ['a']", ":1: 'hosts' must be a table: [hosts]", 'with hosts = ["gpu[01-04]"]'),
    ("[cluster.lab]\nhosts = ['a']", ":1: 'cluster' must be a text", "such as: [clusters.lab]"),
    ("[run]\nhosts = 'a'", ":2: unknown key 'hosts' in [run]", "such as: [clusters.lab]"),
    ("nproc = 2", "distconsole.toml:1: unknown key 'nproc'", "it stands below [check] or [run]"),
    ("[run]\nnprco = 2", "distconsole.toml:2: unknown key 'nprco' in [run]", "mean 'nproc'?"),
    ("[run]\nnproc = 0", "distconsole.toml:2: 'nproc' must be a whole number", ""),
    ("[run]\nlauncher = 'torhc'", "'launcher' must be one of auto, torch", "mean 'torch'?"),
    ("[run]\ngrace = 'soon'", ":2: 'grace' must be a number of seconds, not 'soon'", ""),
    ("[run]\nenv = ['A']", ":2: 'env' must be a table of texts, not ['A']", ""),
    ("[runn]\nnproc = 2", ":1: unknown key 'runn'", "did you mean 'run'?"),
    ("[check]\nlevel = 'deep'", ":2: 'level' must be one of quick, standard, full", ""),
    ("[clusters.lab]\nhost = ['a']", "unknown key 'host' in [clusters.lab]", "mean 'hosts'?"),
    ("[clusters.lab]", "cluster 'lab' needs one of 'hosts' and 'hostfile'", "hosts = ["),
    ("[clusters.lab]\nhosts = 'a'\nhostfile = 'b'", "needs one of 'hosts' and", "leave one out"),
    ("[clusters]\nlab = 3", ":2: 'lab' must be a table", ""),
    ("[clusters.lab]\nhosts = [3]", ":2: 'hosts' must be a list of texts, not [3]", ""),
    ("[hosts.a]\nnik = 'eth0'", ":2: unknown key 'nik' in [hosts.a]", "did you mean 'nic'?"),
    ("[hosts.a]\nport = 99999", ":2: 'port' must be a port (1 to 65535), not 99999", ""),
    ("[hosts.'gpu[1-']\nnic = 'x'", ":1: brackets do not match in 'gpu[1-'", ""),
    ("[notify]\nbel = true", ":2: unknown key 'bel' in [notify]", "did you mean 'bell'?"),
    ("[aliases]\nq = 3", ":2: 'q' must be a line of the prompt", ""),
    ("[keys]\nf11 = 3", ":2: 'f11' must be a line of the prompt", ""),
    ("[expect]\ngpu = 3", ":2: unknown key 'gpu' in [expect]", "did you mean 'gpus'?"),
    ("theme = 3", ":1: 'theme' must be a text, not 3", ""),
    ("setup = 'rm'", "is not trusted, and can have something executed", "distconsole trust"),
]
LINES = {
    "verbs": VERBS,
    "scripts": SCRIPTS,
    "options": OPTIONS,
    "other launchers": OTHER_LAUNCHERS,
    "hosts": HOSTS,
    "runs": RUNS,
    "without effect": [(line, message, HELP) for line, message in WITHOUT_EFFECT],
}


@pytest.fixture(autouse=True)
def project(cwd: Path, home: Path) -> Path:
    """A folder with a script and files that are none, where one stands."""
    files = {
        "train.py": "print(1)\n",
        "pkg/train.py": "",
        "notes.ipynb": "{}",
        "hosts": "a slots=2\nb slots=x\n",
        "none": "# nothing\n",
        "twice": "a\na slots=2\n",
        "variables": "A=1\nB\n",
    }
    (cwd / "pkg").mkdir()
    (home / "mine.py").write_text("")
    for name, text in files.items():
        (cwd / name).write_text(text)
    (cwd / "program").write_bytes(b"\x7fELF\x02\x01\0\xff")
    (cwd / "folder").mkdir()
    return cwd


def wrong_answer(words: list[str], message: str, cure: str, told: Callable[[], str]) -> str:
    """Return what ``words`` are answered with where that is not an error with ``message``, ``cure`` and code 2."""
    code = run(words)
    said = told().rstrip()
    error, _, hint = said.partition("\nhint: ")
    last = error[error.rfind("error: ") :] if "error: " in error else ""
    good = code == 2 and last and "\n" not in last and message in last and cure in hint
    return "" if good else f"{shlex.join(words)} -> {code}: {said}"


@pytest.mark.parametrize("group", LINES)
def test_a_wrong_line_says_what_is_wrong_and_what_to_type(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        wrong_answer(shlex.split(line), message, cure, lambda: capsys.readouterr().err)
        for line, message, cure in LINES[group]
    ]
    assert list(filter(None, answers)) == []


def test_a_file_of_emit_that_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The plan is made first, which asks this machine: by an agent in a folder of the test's own.
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text(f'node_dir = "{tmp_path}/node"\n')
    line = "run --emit sbatch -o /no/such/x train.py"
    said = ("cannot be written: No such file", "name a file", lambda: capsys.readouterr().err)
    try:
        assert wrong_answer(shlex.split(line), *said) == ""
    finally:
        AgentNode(tmp_path / "node").close()


def test_a_wrong_configuration_says_where_and_what(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for text, message, cure in CONFIGURATIONS:
        (project / "distconsole.toml").write_text(text)
        answer = wrong_answer(["runs"], message, cure, lambda: capsys.readouterr().err)
        answers.append(answer and f"{text!r}: {answer}")
    assert list(filter(None, answers)) == []


@pytest.mark.parametrize("words", [["runs"], ["run", f"{'a' * 300}.py"]])
def test_a_path_that_the_system_refuses_is_no_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words == ["runs"]:
        monkeypatch.setenv("XDG_CONFIG_HOME", f"/{'a' * 300}")
    assert run(words) in (1, 2)
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: /")
    assert error.endswith("File name too long")
    assert hint.startswith("hint: see who may: ls -ld /")


def test_a_folder_that_is_gone_is_no_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project / "folder")
    (project / "folder").rmdir()
    assert run(["runs"]) == 2
    assert "error: the folder that you are in: No such file" in capsys.readouterr().err
    assert run(["--version"]) == 0


def test_an_empty_list_of_runs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("no runs yet")
    assert "distconsole run SCRIPT makes one" in told.err


def test_a_data_folder_that_cannot_be_read_is_no_empty_list(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / ".local" / "share" / "distconsole"
    folder.mkdir(parents=True)
    (folder / "runs").write_text("in the way")
    for line in ("runs", "show", "logs last", "stop", "export x"):
        assert run(line.split()) == 1
        error, hint = capsys.readouterr().err.splitlines()[-2:]
        assert (
            error == f"error: the folder of runs, {folder}/runs, cannot be read: Not a directory"
        )
        assert "XDG_DATA_HOME" in hint
