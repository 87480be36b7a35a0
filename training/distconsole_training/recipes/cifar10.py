"""ResNet-18 on CIFAR-10, by any strategy, under any launcher.

``python -m distconsole_training.recipes.cifar10 --data cifar-10-python.tar.gz`` trains on one
device; ``distconsole run --module distconsole_training.recipes.cifar10 --strategy ddp …`` on all
of them. The archive is that of https://www.cs.toronto.edu/~kriz/cifar.html; ``--data generated``
needs no file.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distconsole_training.recipes.images import DataError, make_parser, run

if TYPE_CHECKING:
    import argparse
    from typing import IO

ARCHIVE = "cifar-10-python.tar.gz"
CLASSES = 10
EDGE = 32
PIXELS = 3 * EDGE * EDGE
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
LARGEST_MEMBER = 64 * 2**20
"""Bytes; the archive's batches have 31 MB."""
GENERATED = (50000, 10000)
"""As many images as CIFAR-10 has."""

_UNREADABLE = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, EOFError, OverflowError, RuntimeError),
)
"""Exceptions from bytes that are no pickle, or another one."""


def main() -> None:
    parser = make_parser("cifar10", __doc__)
    parser.set_defaults(edge=EDGE)
    run(parser, _data, pass_batch)


def _data(options: argparse.Namespace) -> tuple[Images, Images, int]:
    if options.data == "generated":
        train_set, test_set = generate(*(min(options.limit or most, most) for most in GENERATED))
    else:
        train_set, test_set = read(Path(options.data), options.limit)
    return train_set, test_set, CLASSES


class Images:
    """Images, (N, 3, 32, 32) uint8, and ``labels``, (N,) int64, in memory for ``pass_batch``."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor(indices)
        return self.images[chosen], self.labels[chosen]


def pass_batch(batch: Any) -> Any:
    """Take a batch as ``Images`` gives it; for DataLoader's ``collate_fn``."""
    return batch


def read(source: Path, limit: int | None = None) -> tuple[Images, ...]:
    """Return the images to train on and those to test with, at most ``limit`` of each.

    ``source`` is the archive, the folder that was in it, or a folder that holds either.

    Raises DataError if it is not there or not CIFAR-10.
    """
    opened = _open_source(source)
    return tuple(_join_batches(opened, names, source, limit) for names in (TRAIN, TEST))


def generate(count: int, test_count: int, seed: int = 0) -> tuple[Images, Images]:
    """Return made-up images of the same shape whose classes a network can learn.

    Each class has a pattern of coloured patches; an image is one of them, moved by up to three
    pixels, under noise.
    """
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(CLASSES, 3, 8, 8, generator=generator)
    patterns = coarse.repeat_interleave(EDGE // 8, dim=2).repeat_interleave(EDGE // 8, dim=3)
    return _make_images(patterns, count, generator), _make_images(patterns, test_count, generator)


def _make_images(patterns: torch.Tensor, count: int, generator: torch.Generator) -> Images:
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    images = torch.empty(count, 3, EDGE, EDGE, dtype=torch.uint8)
    down, across = torch.randint(-3, 4, (2, count), generator=generator).tolist()
    for number, label in enumerate(labels.tolist()):
        moved = patterns[label].roll((down[number], across[number]), (1, 2))
        noise = torch.randn(3, EDGE, EDGE, generator=generator) * 0.2
        images[number] = ((moved * 0.6 + 0.2 + noise).clamp(0, 1) * 255).to(torch.uint8)
    return Images(images, labels)


def _open_source(source: Path) -> dict[str, bytes]:
    """Return the contents of the files that are there, by name."""
    wanted = {*TRAIN, *TEST}
    try:
        for folder in (source, source / "cifar-10-batches-py"):
            if (folder / TEST[0]).is_file():
                paths = [folder / name for name in wanted if (folder / name).is_file()]
                return {path.name: _read_bounded(path, path.open("rb")) for path in paths}
        with tarfile.open(source / ARCHIVE if source.is_dir() else source) as archive:
            files = {name.rpartition("/")[2]: name for name in archive.getnames()}
            opened = {name: archive.extractfile(files[name]) for name in wanted & files.keys()}
            return {name: _read_bounded(name, file) for name, file in opened.items() if file}
    except FileNotFoundError:
        raise DataError(f"{source}: no CIFAR-10 here (archive, or its folder)") from None
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{source} cannot be read: {error}") from error


def _read_bounded(name: str | Path, file: IO[bytes]) -> bytes:
    with file:
        content = file.read(LARGEST_MEMBER + 1)
    if len(content) > LARGEST_MEMBER:
        raise DataError(f"{name} is larger than any of CIFAR-10's files")
    return content


def _join_batches(
    opened: dict[str, bytes], names: tuple[str, ...], source: Path, limit: int | None
) -> Images:
    images, labels = [], []
    for name in names:
        if name not in opened:
            raise DataError(f"{source} has no {name}")
        try:
            pixels, classes = _batch(opened[name])
        except _UNREADABLE as error:
            raise DataError(f"{name} in {source} is not one of CIFAR-10's: {error}") from error
        images.append(pixels)
        labels.append(classes)
    return Images(torch.cat(images)[:limit], torch.cat(labels)[:limit])


def _batch(content: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    found = _Reader(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(found, dict):
        raise TypeError("it holds no dictionary")
    array, classes = found[b"data"], found[b"labels"]
    if not isinstance(array, _Array):
        raise TypeError("its data is no array")
    pixels = array.pixels()
    labels = torch.tensor(classes, dtype=torch.int64)
    if labels.shape != pixels.shape[:1] or not bool(((labels >= 0) & (labels < CLASSES)).all()):
        raise ValueError("its labels are not one class for each image")
    return pixels, labels


class _Type:
    """Stands for ``numpy.dtype``."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: bytes have none."""


class _Array:
    """Stands for ``numpy.ndarray``: the state of its pickle, of which only bytes are ever used."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> torch.Tensor:
        """Return (N, 3, 32, 32), uint8."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("its array is incomplete")
        _, shape, kind, by_columns, content = self.state
        if not isinstance(kind, _Type) or kind.code not in (b"u1", "u1"):
            raise ValueError("its array is not one of bytes")
        if by_columns or not isinstance(content, bytes) or len(shape) != 2 or shape[1] != PIXELS:
            raise ValueError(f"its array has the shape {shape}, wanted (N, {PIXELS})")
        if len(content) != shape[0] * PIXELS:
            raise ValueError(f"its array has {len(content)} bytes for the shape {shape}")
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return flat.reshape(-1, 3, EDGE, EDGE)


class _Reader(pickle.Unpickler):
    """Unpickles containers, text and numbers; numpy's classes become stand-ins."""

    _MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")

    def find_class(self, module: str, name: str) -> Any:
        stand_ins: dict[str, Any] = {
            "_reconstruct": _Array,
            "ndarray": _Array,
            "dtype": _Type,
            "encode": lambda text, _encoding: text.encode("latin1"),
        }
        if module in self._MODULES and name in stand_ins:
            return stand_ins[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


if __name__ == "__main__":
    main()
