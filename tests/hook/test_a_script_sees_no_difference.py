"""Scripts bare and watched: what the user sees is compared word for word."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suite.lean_torch import LEAN_SITE, LEAN_TORCH

if TYPE_CHECKING:
    from conftest import Outcome, Runner

PYENV = Path.home() / ".pyenv" / "versions"
INTERPRETERS = [sys.executable] + [
    str(python)
    for version in ("3.9", "3.10", "3.12", "3.13")
    for python in sorted(PYENV.glob(f"{version}.*/bin/python"))[-1:]
]

PRINTS_ITS_WORLD = """
import sys, os, atexit
atexit.register(print, "registered first, runs last")
atexit.register(print, "registered last, runs first")
print(__name__, sys.argv[1:], sys.path, sys.excepthook is sys.__excepthook__)
print("sitecustomize" in sys.modules, [name for name in sys.modules if name == "torch"])
print(sys.flags.isolated, sys.flags.no_site, sys.flags.ignore_environment)
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_script_without_torch(runner: Runner, python: str) -> None:
    ended = runner.unchanged(PRINTS_ITS_WORLD, python=python, arguments=["--lr", "0.1"])
    assert ended.code == 0
    assert ended.rings == []


@pytest.mark.parametrize("option", ["-I", "-S", "-E", "-s", "-B"])
def test_interpreter_options(runner: Runner, option: str) -> None:
    # Without site nobody takes our folder out of sys.path again; it holds no name of the script's.
    text = PRINTS_ITS_WORLD.replace("sys.path", "[at for at in sys.path if 'hook-' not in at]")
    assert runner.unchanged(text if option == "-S" else PRINTS_ITS_WORLD, option).code == 0


def test_python_dash_m_and_dash_c(runner: Runner) -> None:
    def module(script: Path) -> list[str]:
        return [sys.executable, "-m", script.stem, "one"]

    def line(script: Path) -> list[str]:
        return [sys.executable, "-c", script.read_text(), "one"]

    for command in (module, line):
        assert "'one'" in runner.unchanged(PRINTS_ITS_WORLD, command=command).out


@pytest.mark.parametrize("python", INTERPRETERS)
def test_the_users_own_sitecustomize_runs(runner: Runner, tmp_path: Path, python: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import sys\nprint('mine', __name__, __file__, __spec__.name, sys.path[:3])\nVALUE = 7\n"
    )
    (own / "usercustomize.py").write_text("print('usercustomize')\n")
    ended = runner.unchanged(
        "import sitecustomize, sys; print(sitecustomize.VALUE, sys.path)",
        python=python,
        path=str(own),
    )
    assert ended.out.startswith("mine sitecustomize")


@pytest.mark.parametrize(
    "body", ["raise ValueError('broken')", "import nothing_of_this_name", "raise SystemExit(5)"]
)
def test_a_sitecustomize_of_the_user_that_fails(runner: Runner, tmp_path: Path, body: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(body + "\n")
    runner.unchanged("print('the script')", path=str(own))


@pytest.mark.parametrize("python", INTERPRETERS)
def test_an_uncaught_exception(runner: Runner, python: str) -> None:
    ended = runner.unchanged(
        """
        class Broken(Exception):
            __module__ = "torch.distributed"

        def deep(n):
            if n == 0:
                raise Broken("the data is gone\\nsecond line") from KeyError("cause")
            deep(n - 1)

        deep(3)
        """,
        python=python,
        env={"RANK": "3"},
    )
    assert ended.code == 1
    (error,) = ended.errors
    assert error["rank"] == 3
    assert error["type"] == "Broken"
    assert error["message"] == "the data is gone\nsecond line"
    assert error["traceback"] == ended.err
    assert error["time_ns"] > 1_600_000_000 * 10**9
    assert error["retried"] is False


@pytest.mark.parametrize(("done", "retried"), [(0, True), (1, True), (2, False)])
def test_an_exception_that_torchrun_retries(runner: Runner, done: int, retried: bool) -> None:
    counts = {"TORCHELASTIC_RESTART_COUNT": str(done), "TORCHELASTIC_MAX_RESTARTS": "2"}
    ended = runner.unchanged("raise KeyError(1)", env={"RANK": "3", **counts})
    assert [error["retried"] for error in ended.errors] == [retried]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a reason')", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os; os.abort()", -6),
        ("raise KeyboardInterrupt", -2),
        ("import sys; sys.setrecursionlimit(60)\ndef f(): f()\nf()", 1),
        ("import builtins; builtins.__import__ = lambda *_, **__: [0] * 2**62; x", 1),
        ("def f(:", 1),
    ],
)
def test_the_ways_to_end(runner: Runner, text: str, code: int) -> None:
    assert runner.unchanged(text).code == code


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_module_beside_a_failed_script_does_not_run(runner: Runner, python: str) -> None:
    for name in ("json", "struct", "mmap", "signal"):
        runner.script("print('an exercise'); raise SystemExit(0)", f"{name}.py")
    ended = runner.unchanged("import sys; raise ValueError(sys.path[0])", python=python)
    assert (ended.code, ended.errors[0]["message"]) == (1, str(runner.scripts))


def test_an_excepthook_of_the_script_is_the_one_that_prints(runner: Runner) -> None:
    ended = runner.unchanged(
        """
        import sys
        sys.last_value = KeyError("of code.py"); sys.excepthook(OSError, OSError("caught"), None)
        sys.excepthook = lambda kind, error, trace: print("mine:", kind.__name__, error)
        raise ValueError("x")
        """
    )
    assert ended.out == "mine: ValueError x\n"
    assert ended.errors[0]["type"] == "ValueError"


def test_a_thread_that_fails_is_not_the_process_that_fails(runner: Runner) -> None:
    ended = runner.unchanged(
        """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start(); thread.join()
        print("goes on")
        """
    )
    assert ended.code == 0
    assert ended.errors == []


def test_execv_keeps_the_pid_and_gets_a_ring_of_its_own(runner: Runner) -> None:
    ended = runner.watched(
        LEAN_TORCH
        + """
import os, sys
weights = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
for _ in range(2):
    weights(torch.ones(4, 2)).mean().backward()
    optimizer.step()
if "again" not in sys.argv:
    print("once more", flush=True)
    os.execv(sys.executable, [sys.executable, __file__, "again"])
print("the end")
"""
    )
    assert ended.seen == (0, "once more\nthe end\n", "")
    first, second = ended.rings
    assert first.header["pid"] == second.header["pid"]
    assert [len(ring.steps) for ring in ended.rings] == [2, 2]
    assert [ring.header["flags"] for ring in ended.rings] == [0, 1]


def test_the_hook_can_be_switched_off(trained: Outcome, runner: Runner) -> None:
    ended = runner.watched(TRAINS, env=OFF)
    assert (ended.seen, ended.rings) == (trained.seen, [])
    assert runner.unchanged("raise ValueError", env=OFF).errors == []
    looks = "import os, sys; print(len(sys.meta_path), os.path.exists('/proc/self/fd/223'))"
    runner.unchanged(looks, env=OFF)


OFF = {"DISTCONSOLE_HOOK": "0"}


@pytest.fixture(scope="module")
def trained(standing_runner: Runner) -> Outcome:
    """What the user sees of a training without the hook."""
    return standing_runner.bare(TRAINS)


def test_an_unwritable_folder_costs_the_picture_only(trained: Outcome, runner: Runner) -> None:
    ended = runner.watched(TRAINS, env={"DISTCONSOLE_RINGS": "/proc/nothing"})
    assert (ended.seen, ended.code) == (trained.seen, 0)


def test_a_full_disk_costs_only_figures(trained: Outcome, runner: Runner, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs in a namespace of its own")
    full = tmp_path / "full"
    full.mkdir()

    def on_a_full_disk(script: Path) -> list[str]:
        mount = f"mount -t tmpfs -o size=64k none {full} && exec {sys.executable} {script}"
        return ["unshare", "--mount", "sh", "-c", mount]

    ended = runner.watched(
        TRAINS + f"\nimport os; print(os.listdir({str(full)!r}))",
        env={"DISTCONSOLE_RINGS": str(full)},
        command=on_a_full_disk,
    )
    assert ended.seen == (0, trained.out + "[]\n", trained.seen[2])


TRAINS = f"""{LEAN_TORCH}
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(10, 4), torch.randn(10, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, wanted in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = ((model(inputs) - wanted) ** 2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_training_gives_the_same_numbers(trained: Outcome, runner: Runner) -> None:
    ended = runner.watched(TRAINS)
    assert ended.seen == trained.seen
    assert ended.ring.column("value") == [float(line) for line in ended.out.split()]
    assert ended.ring.column("samples") == [4, 4, 2]


FAILING_DATA = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): raise OSError('file is gone')
"""
FAILS_INSIDE = {
    "the data set": FAILING_DATA + "for batch in torch.utils.data.DataLoader(Data()): pass\n",
    "a worker": (
        FAILING_DATA + "for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass\n"
    ),
    "next beyond the end": (
        "batches = iter(torch.utils.data.DataLoader(torch.ones(2, 1)))\n"
        "next(batches); next(batches); next(batches)\n"
    ),
    "backward": "torch.ones(3, requires_grad=True).mul(2).backward()\n",
    "a backward of the script": (
        "class Bad(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): raise RuntimeError('in my backward')\n"
        "Bad.apply(torch.ones(1, requires_grad=True)).backward()\n"
    ),
    "an optimizer": (
        "class Bad(torch.optim.SGD):\n"
        "    def step(self, closure=None): raise RuntimeError('in my step')\n"
        "Bad([torch.ones(1, requires_grad=True)], lr=1.0).step()\n"
    ),
    "a scaler": "torch.amp.GradScaler('cpu').update()\n",
    "scaling": "torch.amp.GradScaler('cpu').scale(5)\n",
    "a process group": "import torch.distributed\ntorch.distributed.init_process_group('nonsense')\n",
}

NO_FRAME = "no frame of ours is in a traceback"
LINE = "warnings name the line of the script"
SEEN = {
    "loaders and specs are the ones of the import system": """
import importlib.util, inspect
spec = importlib.util.find_spec("torch")
print(type(spec.loader), spec.origin)
import torch
print(type(torch.__loader__), sorted(vars(torch.__loader__)), type(torch.__spec__.loader))
print(len(inspect.getsource(torch.utils.data.dataloader._BaseDataLoaderIter.__next__)))
print(inspect.signature(torch.autograd.backward), torch.autograd.backward.__module__)
""",
    NO_FRAME: f"""
import torch, torch.utils.data, traceback
for where, text in {FAILS_INSIDE!r}.items():
    try:
        exec(compile(text, where, "exec"))
    except Exception:
        traceback.print_exc()
""",
    LINE: """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Longer(IterableDataset):
    def __len__(self): return 2
    def __repr__(self): return "Longer"
    def __iter__(self): return iter(torch.ones(6, 1))

loader = DataLoader(Longer(), batch_size=2)
len(loader)
for batch in loader:
    print(batch.shape)
""",
    "the stack below a data set": """
import torch, traceback
from torch.utils.data import DataLoader, Dataset

class Looks(Dataset):
    def __len__(self): return 1
    def __getitem__(self, index):
        traceback.print_stack()
        return index

for batch in DataLoader(Looks()): pass
""",
    "nothing of ours is pickled or saved": """
import io, pickle, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
scaler = torch.amp.GradScaler("cpu")
for (batch,) in loader:
    loss = model(batch).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer); scaler.update()
class WithoutAddresses(pickle.Pickler):
    def persistent_id(self, thing):
        return "tensor" if isinstance(thing, torch.Tensor) else None
for thing in (optimizer, loader, scaler, model, torch.autograd.backward):
    WithoutAddresses(pickled := io.BytesIO()).dump(thing)
    print(type(thing).__name__, len(pickled.getvalue()), b"distconsole" in pickle.dumps(thing))
saved = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
saved.seek(0)
print(sorted(torch.load(saved, weights_only=True)))
print(b"distconsole" in saved.getvalue())
print([name for name in vars(loss)], sorted(vars(optimizer)), sorted(vars(loader)))
""",
}
"""What a script can find out, and how; in one process, because torch's import costs more than all of it."""


def test_a_script_that_looks_at_torch_finds_nothing_of_ours(runner: Runner) -> None:
    # The first part imports torch itself.
    script = f"""{LEAN_SITE}
for what, text in {SEEN!r}.items():
    for stream in sys.stdout, sys.stderr:
        print("PART", file=stream, flush=True)
    exec(compile(text, what, "exec"), {{"__name__": "__main__"}})
"""
    bare, watched = runner.both(script)
    assert (bare.code, watched.code) == (0, 0), watched.err

    def parts(text: str) -> list[str]:
        return text.split("PART\n")[1:]

    without, seen = (
        dict(zip(SEEN, zip(*map(parts, ended.seen[1:]), strict=True), strict=True))
        for ended in (bare, watched)
    )
    for what, streams in seen.items():
        assert streams == without[what], what
        assert "".join(streams), what
    errors = seen[NO_FRAME][1]
    assert [where for where in FAILS_INSIDE if f'File "{where}", line' not in errors] == []
    assert f"{LINE}:12: " in seen[LINE][1]


def test_a_torch_that_cannot_be_imported(runner: Runner, tmp_path: Path) -> None:
    own = tmp_path / "own" / "torch"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text(
        "import warnings\nwarnings.warn('old', UserWarning, stacklevel=2)\nprint('imported')\n"
        "import torch._nothing\n"
    )
    missing = "No module named 'torch._nothing'"
    caused = "try: import torch\nexcept ImportError as error: raise ValueError('none') from error"
    for text, message in (
        ("import torch", missing),
        ("import importlib\nimportlib.import_module('torch')", missing),
        (caused, "none"),
    ):
        ended = runner.unchanged(text, path=str(own.parent))
        assert [each["message"] for each in ended.errors] == [message]
