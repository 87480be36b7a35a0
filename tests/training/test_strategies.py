"""Every strategy on its real engine learns what one process learns, whatever is sent how."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from distconsole_training import setup

if TYPE_CHECKING:
    from types import ModuleType

    from conftest import Starter

SETTINGS: list[dict[str, Any]] = [
    {},
    {"accumulate": 3, "clip": 0.5},
    {"precision": "bf16", "accumulate": 2},
    {"precision": "fp16", "clip": 0.5, "accumulate": 2},
    {"compression": "fp16"},
]
Learned = list[dict[str, Any]]
CLOSE = {"fp32": 2e-6, "bf16": 3e-2, "fp16": 3e-3}
COMPRESSED = 3e-3


def settings() -> Learned:
    """Return what this torch can do on a CPU."""
    has_scaler = hasattr(torch.amp, "GradScaler")
    return [one for one in SETTINGS if has_scaler or one.get("precision") != "fp16"]


@pytest.fixture(scope="module")
def training(scripts: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_script", scripts / "training.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alone(training: ModuleType) -> Learned:
    """What one process learns in each of the settings."""
    with setup(device="cpu") as world:
        return [training.trained("single", setting, world) for setting in settings()]


def by_hand(training: ModuleType, clip: float) -> list[float]:
    """What a plain loop learns, in the order that DistributedSampler would give one rank."""
    model = training.network()
    training.begin(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    inputs, labels = training.samples().tensors
    for epoch in range(training.EPOCHS):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(training.SAMPLES, generator=generator)
        for chosen in order.split(training.GLOBAL_BATCH):
            functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    weights = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    return [float(number) for number in weights]


def test_single_is_the_loop_that_one_writes_by_hand(training: ModuleType) -> None:
    with setup(device="cpu") as world:
        found = training.trained("single", {"clip": 0.5}, world)
    assert found["weights"] == by_hand(training, clip=0.5)


@pytest.mark.usefixtures("warm_ranks")  # whose worker has ``alone``
def test_accumulating_is_the_same_step_in_parts(alone: Learned) -> None:
    with_clip = SETTINGS[1]["clip"]
    assert with_clip
    assert alone[0]["weights"] != alone[1]["weights"]  # the clipping and the last group differ
    for setting, found in zip(settings(), alone, strict=True):
        assert found["found"]["samples"] == 102
        assert found["found"]["right"] > 90, setting


def judged(
    said: list[Any], names: list[str], alone: Learned, tried: Learned | None = None
) -> None:
    for name in names:
        for number, setting in enumerate(settings() if tried is None else tried):
            both = [one[f"{name} {number}"] for one in said]
            assert both[0]["differs"] == 0.0, (name, setting)
            assert both[0]["weights"] == both[1]["weights"], (name, setting)
            assert both[0]["found"] == both[1]["found"], (name, setting)
            assert both[0]["found"]["samples"] == 102
            close = CLOSE[setting.get("precision", "fp32")]
            close = COMPRESSED if "compression" in setting else close
            far = max(
                abs(one - other)
                for one, other in zip(both[0]["weights"], alone[number]["weights"], strict=True)
            )
            assert far < close, (name, setting, far)


@pytest.mark.torch_ranks
def test_ddp_learns_the_same(starter: Starter, scripts: Path, alone: Learned) -> None:
    said = starter.ranks(scripts / "training.py", 2, "auto=ddp", json.dumps(settings()))
    assert [one["auto"] for one in said] == [[rank, 2, "gloo", "env"] for rank in range(2)]
    judged(said, ["ddp"], alone)


@pytest.mark.horovod
def test_horovod_learns_what_one_process_learns_and_so_does_ddp_under_it(
    starter: Starter, scripts: Path, alone: Learned
) -> None:
    horovodrun = ("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2")
    words = ("auto=horovod,ddp", json.dumps(settings()))
    said = starter.launched(horovodrun, scripts / "training.py", 2, *words)
    assert [one["auto"] for one in said] == [[rank, 2, "horovod", "horovod"] for rank in range(2)]
    judged(said, ["horovod", "ddp"], alone)


@pytest.mark.mpi
@pytest.mark.torch_ranks
@pytest.mark.horovod
def test_mpirun_starts_both_and_they_meet(starter: Starter, scripts: Path, alone: Learned) -> None:
    mpirun = ("mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none")
    words = ("auto=ddp;horovod=horovod", json.dumps(settings()[:2]))
    said = starter.launched(mpirun, scripts / "training.py", 2, *words)
    assert [one["auto"] for one in said] == [[rank, 2, "gloo", "open-mpi"] for rank in range(2)]
    assert [one["horovod"][2:] for one in said] == [["horovod", "open-mpi"]] * 2
    judged(said, ["ddp", "horovod"], alone, settings()[:2])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["single", "dp"])
def test_gpus_learn_as_a_cpu(name: str, training: ModuleType, alone: Learned) -> None:
    with setup() as world:
        assert world.device.type == "cuda"
        for number, setting in enumerate(settings()):
            found = training.trained(name, setting, world)
            far = max(
                abs(one - other)
                for one, other in zip(found["weights"], alone[number]["weights"], strict=True)
            )
            assert far < 10 * CLOSE[setting.get("precision", "fp32")], (setting, far)


@pytest.mark.gpu
def test_a_gpu_each_under_nccl(starter: Starter, scripts: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    tried = [*settings(), {"compression": "bf16"}]
    said = starter.ranks(scripts / "training.py", 2, "auto=ddp", json.dumps(tried))
    assert [one["auto"][2] for one in said] == ["nccl", "nccl"]
    for number in range(len(tried)):
        assert [one[f"ddp {number}"]["differs"] for one in said] == [0.0, 0.0]
