"""Checkpoints of one process: whole or not there, read without running anything."""

import os
import pickle
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from distconsole_training import Batches, CheckpointError, Checkpoints, setup, strategy
from distconsole_training.api.checkpoints import ENV_CHECKPOINT, ENV_RUN_DIR


class Part:
    """Holds one value, as a schedule would."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def saved(folder: Path, *steps: int, keep: int = 3) -> list[Path]:
    part = Part()
    kept = Checkpoints(folder, keep=keep, part=part)
    for step in steps:
        part.value = torch.full((1000,), float(step))
        kept.save(step)
    return sorted(folder.iterdir())


def resumed(folder: Path) -> tuple[int, float | None]:
    part = Part()
    step = Checkpoints(folder, part=part).resume()
    return step, float(part.value[0]) if step else None


def test_the_newest_are_kept_and_the_newest_is_gone_on_from(tmp_path: Path) -> None:
    paths = saved(tmp_path / "new" / "kept", 1, 2, 30, keep=2)
    assert [path.name for path in paths] == ["step-000000002.pt", "step-000000030.pt"]
    assert resumed(tmp_path / "new" / "kept") == (30, 30.0)


def test_without_a_checkpoint_a_job_begins(tmp_path: Path) -> None:
    assert resumed(tmp_path / "nothing") == (0, None)
    (tmp_path / "notes.txt").write_text("x")
    assert resumed(tmp_path) == (0, None)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "hostile"])
def test_a_damaged_file_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    *_, newest = saved(tmp_path / "kept", 1, 2)
    content = bytearray(newest.read_bytes())
    if damage == "cut":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[content.find(b"\x00\x00\x00\x40" * 8) + 3] ^= 1
        newest.write_bytes(content)
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "foreign":
        torch.save({"weights": torch.zeros(3)}, newest)
    else:
        newest.write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    with pytest.warns(RuntimeWarning, match=r"step-000000002\.pt cannot be used"):
        assert resumed(tmp_path / "kept") == (1, 1.0)
    assert not (tmp_path / "ran").exists()


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_if_none_is_whole_the_job_does_not_begin_anew(tmp_path: Path) -> None:
    for path in saved(tmp_path, 1, 2):
        path.write_bytes(b"")
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match="is whole"):
        resumed(tmp_path)


def test_what_could_not_be_read_back_is_refused_when_it_is_written(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="cannot be read back safely") as raised:
        Checkpoints(tmp_path, part=Part(Part())).save(2)
    assert "\n" not in str(raised.value)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        Checkpoints(tmp_path, part=Part([lambda: 0])).save(2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.pt"]
    assert resumed(tmp_path) == (1, 1.0)


def test_functions_are_no_state(tmp_path: Path) -> None:
    part = Part()
    part.state_dict = lambda: {"value": 7, "anneal": os.path.join}  # type: ignore[method-assign]
    Checkpoints(tmp_path, part=part).save(1)
    back = Part()
    assert Checkpoints(tmp_path, part=back).resume() == 1
    assert back.value == 7


def test_a_part_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="has no schedule; it has part"):
        Checkpoints(tmp_path, part=Part(), schedule=Part()).resume()
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


def test_the_launcher_says_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv(ENV_RUN_DIR, str(tmp_path / "run"))
    first, _second = saved(tmp_path / "kept", 1, 2)
    assert (tmp_path / "run" / "checkpoint").read_text() == f"{tmp_path}/kept/step-000000002.pt\n"
    monkeypatch.setenv(ENV_CHECKPOINT, str(first))
    assert resumed(tmp_path / "kept") == (1, 1.0)
    assert resumed(tmp_path / "elsewhere") == (1, 1.0)
    first.unlink()
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert resumed(tmp_path / "kept") == (2, 2.0)


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    kept = Checkpoints(tmp_path)
    kept.save(1)
    wanted = draw()
    assert draw() != wanted
    kept.resume()
    assert draw() == wanted


def test_an_epoch_broken_off_goes_on_with_what_was_not_trained_on() -> None:
    with setup(device="cpu"):
        way = strategy("single", accumulate=2)
        model = torch.nn.Linear(1, 1)
        network, _ = way.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
        data = [torch.tensor([float(number)]) for number in range(11)]
        loader = way.loader(data, 2, shuffle=False)
        assert (len(loader), loader.steps) == (6, 3)
        read = []
        for number, batch in enumerate(loader):
            if number == 3:
                break  # read, but not trained on; nor was the batch before used by the optimizer
            read.append(batch.flatten().tolist())
            way.step(network(batch).sum())
        place = loader.state_dict()
        assert place == {"epoch": 0, "trained": 4, "samples": 11}
        other = way.loader(data, 3, shuffle=False)
        other.load_state_dict(place)
        assert [batch.flatten().tolist() for batch in other] == [[4, 5, 6], [7, 8, 9], [10]]
        assert other.epoch == 1
        with pytest.raises(ValueError, match="of a data set of 11 samples, this one has 5"):
            way.loader(data[:5], 1).load_state_dict(place)


def test_the_shares_of_all_ranks_are_the_data_once() -> None:
    for total, ranks, batch_size, drop_last, left_out in (
        (103, 2, 5, False, 1),
        (103, 3, 4, False, 1),
        (103, 3, 4, True, 7),
        (8, 4, 2, True, 0),
    ):
        shares, steps = [], set()
        for rank in range(ranks):
            loader = batches(total, rank, ranks, batch_size, drop_last=drop_last)
            read = [batch.tolist() for batch in loader]
            assert len(read) == len(batches(total, rank, ranks, batch_size, drop_last=drop_last))
            steps.add(len(read))
            shares += chain.from_iterable(read)
        assert len(steps) == 1
        assert len(set(shares)) == len(shares) == total - left_out
    with pytest.raises(ValueError, match="3 samples are too few for 4 ranks"):
        batches(3, 0, 4, 1, drop_last=False)


class Place:
    """A rank of a world that is not connected: enough to share out data."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.device = torch.device("cpu")


def batches(total: int, rank: int, ranks: int, batch_size: int, *, drop_last: bool) -> Batches:
    return Batches(
        torch.arange(total),
        batch_size,
        Place(rank, ranks),  # type: ignore[arg-type]
        shuffle=True,
        seed=0,
        drop_last=drop_last,
        accumulate=1,
        before_batch=lambda left: None,
        options={},
    )
