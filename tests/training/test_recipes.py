"""The recipes, run as a user runs them, and what they read: small data, real ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import shlex
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from distconsole_training.recipes import cifar10, imagefolder
from distconsole_training.recipes.images import DataError, ResNet18, augment

if TYPE_CHECKING:
    from conftest import Starter

numpy = pytest.importorskip("numpy")
RECIPES = Path(cifar10.__file__).parent
DIGITS = """
import importlib.util, pathlib, sys, types, numpy
def load_digits():
    found = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    table = numpy.loadtxt(pathlib.Path(found, "datasets/data/digits.csv.gz"), delimiter=",")
    return types.SimpleNamespace(data=table[:, :-1], target=table[:, -1].astype(int))
sys.modules["sklearn.datasets"] = types.SimpleNamespace(load_digits=load_digits)
"""
"""scikit-learn's digits without its import, which takes a second of a core; the demo has it whole."""


@pytest.mark.torch_ranks
def test_before_and_after_learn_the_same(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs scikit-learn's digits")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    exec(DIGITS, {})  # noqa: S102
    from distconsole_training.recipes import after, before

    before.main(str(tmp_path / "before.pt"))
    after.main(str(tmp_path / "alone.pt"))
    script = tmp_path / "after.py"
    script.write_text(
        f"{DIGITS}\nfrom distconsole_training.recipes import after\nafter.main(sys.argv[1])"
    )
    two = starter.forked(script, 2, str(tmp_path / "two.pt"))
    said = capsys.readouterr().out.splitlines() + two[0].out.splitlines()
    assert re.fullmatch(r"test accuracy 0\.9\d{5}", said[0])
    assert said == [said[0]] * 3
    assert [(one.code, one.out) for one in two[1:]] == [(0, "")]
    weights = torch.load(tmp_path / "before.pt", weights_only=True)
    for name in ("alone", "two"):
        others = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        for key, weight in weights.items():
            assert torch.allclose(others[key], weight, rtol=1e-4, atol=5e-6)


@pytest.mark.torch_ranks
def test_resnet_learns_on_two_ranks_and_goes_on_alone(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    options = ["--limit", "320", "--width", "8", "--lr", "0.4", "--epochs", "3"]
    options += ["--checkpoints", str(tmp_path / "kept"), "--result", str(tmp_path / "result")]
    part = [*options, "--strategy", "ddp", "--batch", "8", "--precision", "bf16"]
    ended = starter.forked(RECIPES / "cifar10.py", 2, *part)
    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    found = json.loads((tmp_path / "result").read_text())
    assert (found["world_size"], found["strategy"], found["epoch"]) == (2, "ddp", 3)
    assert found["test_accuracy"] > 0.3  # a guess is right in 0.1
    assert found["samples_s"] > 0

    (tmp_path / "kept" / "step-000000003.pt").unlink()
    monkeypatch.setattr(sys, "argv", ["cifar10", *options, "--batch", "16"])
    cifar10.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "going on after epoch 2"
    assert said[1].startswith("epoch 3: ")
    assert len(said) == 2
    again = json.loads((tmp_path / "result").read_text())
    assert again["world_size"] == 1
    assert again["test_accuracy"] > 0.3


def test_resnet_18_has_the_weights_of_the_paper() -> None:
    def weights(model: torch.nn.Module) -> int:
        return sum(weight.numel() for weight in model.parameters())

    assert weights(ResNet18(1000, edge=224)) == 11_689_512
    assert weights(ResNet18(10, edge=32)) == 11_173_962
    small = ResNet18(7, edge=64, width=2)
    assert small(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_made_up_images_are_the_same_everywhere_and_can_be_told_apart() -> None:
    train_set, test_set = cifar10.generate(300, 100)
    again, _ = cifar10.generate(300, 100)
    assert torch.equal(train_set.images, again.images)
    assert train_set.images.shape == (300, 3, 32, 32)
    assert train_set.images.dtype == torch.uint8
    means = torch.stack(
        [train_set.images[train_set.labels == label].float().mean(dim=0) for label in range(10)]
    )
    far = ((test_set.images[:, None].float() - means) ** 2).sum(dim=(2, 3, 4))
    assert (far.argmin(dim=1) == test_set.labels).float().mean() > 0.9


def test_augmenting_moves_and_mirrors_each_image_for_itself() -> None:
    torch.manual_seed(0)
    images = torch.arange(2.0 * 3 * 8 * 8).reshape(2, 3, 8, 8) + 1
    assert torch.equal(augment(images[:0]), images[:0])
    moved = augment(images.repeat(20, 1, 1, 1))
    assert moved.shape == (40, 3, 8, 8)
    for number, image in enumerate(moved):
        original = images[number % 2]
        seen = image[image > 0]
        assert set(seen.tolist()) <= set(original.flatten().tolist())
        assert len(seen) >= 3 * 4 * 4
    assert len({tuple(image.flatten().tolist()) for image in moved}) > 30


def batch(count: int, seed: int) -> dict[bytes, Any]:
    """A file of CIFAR-10's, smaller."""
    source = numpy.random.RandomState(seed)
    return {
        b"batch_label": b"batch",
        b"labels": source.randint(0, 10, count).tolist(),
        b"data": source.randint(0, 256, (count, 3072)).astype("uint8"),
        b"filenames": [b"cat_s_%d.png" % number for number in range(count)],
    }


def folder_of(root: Path, **contents: Any) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate((*cifar10.TRAIN, *cifar10.TEST)):
        found = contents.get(name, batch(4, number))
        content = found if isinstance(found, bytes) else pickle.dumps(found, protocol=2)
        (folder / name).write_bytes(content)
    return folder


def test_cifar_is_read_from_its_archive_and_from_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "there")
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(folder, arcname="cifar-10-batches-py")
    wanted = batch(4, 0)
    for source in (archive, folder, folder.parent, tmp_path):
        train_set, test_set = cifar10.read(source)
        assert (len(train_set), len(test_set)) == (20, 4)
        assert train_set.labels[:4].tolist() == wanted[b"labels"]
        assert train_set.images[:4].flatten(1).tolist() == wanted[b"data"].tolist()
    train_set, test_set = cifar10.read(folder, limit=3)
    assert (len(train_set), len(test_set)) == (3, 3)
    images, labels = train_set.__getitems__([2, 0])
    assert torch.equal(images[1], train_set[0][0])
    assert int(labels[0]) == int(train_set[2][1])


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({**batch(2, 0), b"data": numpy.zeros((2, 3072), "float32")}, "not one of bytes"),
        ({**batch(2, 0), b"data": numpy.zeros((2, 10), "uint8")}, r"shape \(2, 10\)"),
        ({**batch(2, 0), b"data": [1, 2]}, "no array"),
        ({**batch(2, 0), b"labels": [0, 10]}, "labels"),
        ({**batch(2, 0), b"labels": [0]}, "labels"),
        ([1, 2], "no dictionary"),
        ({b"labels": []}, "data"),
        (b"no pickle", "not one of CIFAR-10's"),
        (b"", "not one of CIFAR-10's"),
        (pickle.dumps(numpy.array([{}], dtype=object), protocol=2), "no dictionary"),
    ],
)
def test_what_is_not_cifar_is_refused(tmp_path: Path, content: Any, named: str) -> None:
    folder = folder_of(tmp_path, data_batch_2=content)
    with pytest.raises(DataError, match=named) as raised:
        cifar10.read(folder)
    assert "data_batch_2" in str(raised.value)


def test_nothing_is_run_that_a_pickle_asks_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", test_batch={**batch(2, 0), b"x": Hostile(tmp_path / "ran")})
    with pytest.raises(DataError, match=r"asks for posix\.mkdir"):
        cifar10.read(folder)
    assert not (tmp_path / "ran").exists()


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no CIFAR-10 here"):
        cifar10.read(tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        cifar10.read(tmp_path)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match="has no data_batch_1"):
        cifar10.read(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cifar10", "--data", str(tmp_path / "x")])
    with pytest.raises(SystemExit, match=r"cifar10: .*no CIFAR-10 here"):
        cifar10.main()


def image_folder(root: Path, classes: int = 2, count: int = 8) -> Path:
    source = numpy.random.RandomState(0)
    for part in ("train", "val"):
        for label in range(classes):
            (root / part / f"class{label}").mkdir(parents=True)
            for number in range(count):
                noise = source.randint(0, 60, (20 + number, 24, 3)) + 150 * label
                numpy.save(root / part / f"class{label}" / f"{number}.npy", noise.astype("uint8"))
    return root


def test_a_folder_of_images_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split("--edge 16 --width 4 --batch 4 --epochs 10 --lr 1 --data")
    monkeypatch.setattr(sys, "argv", ["imagefolder", *words, str(image_folder(tmp_path))])
    imagefolder.main()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("epoch 10: ")
    assert "(16 of 16)" in last or "(15 of 16)" in last


def test_images_are_cut_and_sized(tmp_path: Path) -> None:
    root = image_folder(tmp_path) / "val"
    middle = imagefolder.ImageFolder(root, 16, crops=False)
    assert middle.classes == ["class0", "class1"]
    assert len(middle) == 16
    image, label = middle[15]
    assert (image.shape, image.dtype, label) == ((3, 16, 16), torch.uint8, 1)
    assert torch.equal(image, middle[15][0])
    torch.manual_seed(0)
    cropped = imagefolder.ImageFolder(root, 16, crops=True, limit=4)
    assert len(cropped) == 4
    assert not torch.equal(cropped[0][0], cropped[0][0])


def test_images_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    root = image_folder(tmp_path) / "val"
    folder = imagefolder.ImageFolder
    for content, named in (
        (numpy.zeros((4, 4), "uint8"), r"shape \(4, 4\)"),
        (numpy.zeros((4, 4, 3), "float32"), "float32"),
        (numpy.array([{}], dtype=object), "cannot be decoded"),
    ):
        numpy.save(root / "class0" / "0.npy", content)
        with pytest.raises(DataError, match=named):
            folder(root, 8, crops=False)[0]
    with pytest.raises(DataError, match="no such folder"):
        folder(root / "x", 8, crops=False)
    (root.parent / "empty" / "class0").mkdir(parents=True)
    with pytest.raises(DataError, match="no image"):
        folder(root.parent / "empty", 8, crops=False)


def test_a_jpeg_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "class0").mkdir()
    (tmp_path / "class0" / "a.JPEG").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="pip install pillow"):
        imagefolder.ImageFolder(tmp_path, 8, crops=False)


def test_pillow_decodes_png_and_jpeg(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    (tmp_path / "class0").mkdir()
    pixels = numpy.full((9, 12, 3), (10, 200, 90), "uint8")
    for name in ("a.png", "b.jpeg"):
        pillow.fromarray(pixels).save(tmp_path / "class0" / name)
    for image, _ in (imagefolder.ImageFolder(tmp_path, 8, crops=False)[n] for n in range(2)):
        assert (image.float().mean(dim=(1, 2)) - torch.tensor([10.0, 200, 90])).abs().max() < 3


def test_the_example_in_the_docs_runs_and_goes_on(
    cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs/guide/training.md").read_text(encoding="utf-8")
    code = compile(text.split("```python\n")[1].split("```")[0], "docs/guide/training.md", "exec")
    exec(code, {})  # noqa: S102  # it is ours
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5
    assert said[-1].startswith("epoch 5: ")
    assert int(said[-1].split()[2]) > 450
    (cwd / "checkpoints" / "step-000000005.pt").unlink()
    exec(code, {})  # noqa: S102  # it is ours
    assert capsys.readouterr().out.splitlines() == said[-1:]
