"""``setup()`` on real process groups: every way to be found, and every way to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import distconsole_training
from distconsole_training import SetupError, barrier, reduce_mean, reduce_sum, setup, strategy
from distconsole_training.api import collectives
from suite.programs import free_port, run_to_end

if TYPE_CHECKING:
    from conftest import Starter

ROOT = Path(distconsole_training.__file__).parent.parent
needs_ranks = pytest.mark.torch_ranks


@needs_ranks
def test_two_ranks_meet_in_every_way(starter: Starter, scripts: Path, tmp_path: Path) -> None:
    port, shared = free_port(), str(tmp_path / "store")
    both = starter.answers(starter.ended(scripts / "worlds.py", 2, port, shared))
    launchers = {
        "env": "env",
        "file": "arguments",
        "tcp": "arguments",
        "slurm": "slurm",
        "slurm-file": "slurm",
    }
    for rank, said in enumerate(both):
        assert {way: found["launcher"] for way, found in said.items()} == launchers
        for way, found in said.items():
            local_rank = 0 if way == "file" else rank  # nobody says it there
            assert found["world"] == [rank, local_rank, 2], way
            assert found["backend"] == "gloo"
            assert found["whole"] == 3
            assert found["number"] == 0.2
            assert found["bytes"] == [400, 1]
            assert found["mean"] == 0.5
            assert found["weighed"] == 0.75
            assert found["silent"] == 5.0
            assert found["halves"] == "tensor([0.5000], dtype=torch.float16)"
            assert "called already" in found["twice"]
            assert found["kept"]


@needs_ranks
def test_a_rank_that_raises_is_not_hidden_by_an_abort(starter: Starter, scripts: Path) -> None:
    ended = starter.ended(scripts / "raising.py", 2)
    assert [one.code for one in ended] == [1, 1], "\n".join(one.err for one in ended)
    assert "LookupError: lost on rank 1" in ended[1].err
    assert "LookupError" not in ended[0].err


def test_alone_there_is_nobody_to_wait_for() -> None:
    with setup() as world:
        assert (world.rank, world.local_rank, world.world_size) == (0, 0, 1)
        assert (world.backend, world.launcher.value) == ("none", "none")
        barrier()
        assert (reduce_sum(2), reduce_sum(0.5), reduce_mean(3)) == (2, 0.5, 3.0)
    world.close()
    with pytest.raises(ZeroDivisionError, match="no rank has a sample"):
        reduce_mean(1.0, samples=0)


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        ({"engine": "mpi"}, {}, "engine='mpi'"),
        ({"backend": "mpi"}, {}, "backend='mpi'"),
        ({"device": "cuda"}, {}, "torch sees no GPU"),
        ({"backend": "nccl"}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        (
            {"backend": "nccl", "init_method": "tcp://127.0.0.1:1", "device": "cpu"},
            {"RANK": "0", "WORLD_SIZE": "2"},
            "nccl.*needs a GPU",
        ),
        (
            {"engine": "horovod"},
            {"RANK": "0", "WORLD_SIZE": "2"},
            "HOROVOD_RANK is not set|cannot import horovod.torch",
        ),
        (
            {"init_method": "tcp://127.0.0.1:1", "timeout_seconds": 0.2},
            {"RANK": "1", "WORLD_SIZE": "2"},
            "rank 1 of 2 could not meet the others",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    arguments: dict[str, object],
    environment: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if arguments.get("device") == "cuda" and _has_gpu():
        pytest.skip("this machine has a GPU")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=named) as raised:
        setup(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_strategies_refuse_what_they_cannot_do() -> None:
    with setup(device="cpu"):
        for arguments, named in (
            ({"name": "dpp"}, "'dpp' is not one of single, dp, ddp, horovod"),
            ({"name": "ddp", "precision": "fp8"}, "precision='fp8'"),
            ({"name": "ddp", "compression": "int8"}, "compression='int8'"),
            ({"name": "ddp", "accumulate": 0}, "accumulate=0"),
            ({"name": "ddp", "clip": 0.0}, "clip=0.0"),
        ):
            with pytest.raises(ValueError, match=named):
                strategy(**arguments)  # type: ignore[arg-type]


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, distconsole_training; print('torch' in sys.modules, 'typing' in sys.modules)"
    )
    isolated = run_to_end(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
        check=True,
    )
    assert isolated.stdout.split() == ["False", "False"]


def test_the_package_has_what_it_lists_and_nothing_else() -> None:
    assert set(distconsole_training.__all__) <= set(dir(distconsole_training))
    for name in distconsole_training.__all__:
        assert getattr(distconsole_training, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        distconsole_training.train  # noqa: B018


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64])
def test_what_was_sent_is_held_beside_python(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sent = torch.zeros(shape, dtype=dtype)
    holder = collectives._hold_in_cpp(sent)
    assert holder.shape == sent.shape
    assert sent._use_count() == 2  # else a thread of gloo that lets go of it may end the process
