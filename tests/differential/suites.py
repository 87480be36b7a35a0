"""What is run bare and watched."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PYTHON = "{python}"
PYTEST = (
    PYTHON,
    "-m",
    "pytest",
    "-q",
    "-p",
    "differential.recorder",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=",
    "-p",
    "no:xdist",
)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Checkout(NamedTuple):
    """A tag of a public repository, where a package ships no tests, and the folder in it that these are run in."""

    url: str
    tag: str
    folder: str


class Suite(NamedTuple):
    """Tests that one command runs, or programs, each of which is a test.

    Attributes:
        package: Whose version is shown.
        commands: Test -> command; one of pytest's reports its tests by itself.
        checkout: Where its files are: the working folder of the commands.
        env: Variables besides the environment.
    """

    package: str
    commands: Mapping[str, tuple[str, ...]]
    checkout: Checkout | None = None
    env: Mapping[str, str] = {}


def by_torchrun(module: str) -> tuple[str, ...]:
    return (*TORCHRUN, "-m", module)


def own(pattern: str) -> dict[str, tuple[str, ...]]:
    """Return the programs of this folder: one that says ``# ranks: 2`` in its first line is started by torchrun."""
    found = {}
    for path in sorted((HERE / "programs").glob(pattern)):
        ranks = path.read_text().startswith("# ranks: 2")
        found[path.stem] = (*(TORCHRUN if ranks else (PYTHON,)), str(path))
    return found


ACCELERATE = "accelerate.test_utils.scripts"
SUITES = {
    "torch.distributed": Suite(
        "torch",
        {"": (*PYTEST, "-c", os.devnull, "--confcutdir", str(HERE), str(HERE / "torch_suite.py"))},
    ),
    "accelerate": Suite(
        "accelerate",
        {
            name: by_torchrun(f"{ACCELERATE}.{name}")
            for name in (
                "test_script",
                "test_sync",
                "test_ops",
                "test_ddp_comm_hook",
                "test_distributed_data_loop",
                "test_merge_weights",
                "test_cli",
            )
        }
        | {"test_notebook": (PYTHON, "-m", f"{ACCELERATE}.test_notebook")},
        env={"ACCELERATE_USE_CPU": "true"},
    ),
    "horovod": Suite(
        "horovod",
        {
            "": (
                PYTHON,
                "-m",
                "horovod.runner.launch",
                "-np",
                "2",
                "--gloo",
                *PYTEST,
                "test_torch.py",
            )
        },
        Checkout("https://github.com/horovod/horovod", "v0.28.1", "test/parallel"),
    ),
    "torchmetrics": Suite(
        "torchmetrics",
        {"": (*PYTEST, "unittests/bases", "unittests/wrappers/test_tracker.py")},
        Checkout("https://github.com/Lightning-AI/torchmetrics", "v1.9.0", "tests"),
        {"USE_PYTEST_POOL": "1"},
    ),
    "lightning": Suite("lightning", own("lightning_*.py")),
    "transformers": Suite("transformers", own("transformers_*.py")),
    "torch, by programs": Suite("torch", own("torch_*.py")),
}
PACKAGES = (
    "accelerate",
    "transformers",
    "lightning",
    "torchmetrics",
    "expecttest",
    "cachier",
    "mock",
    "scipy",
    "cloudpickle",
)
