"""CIFAR-10 from its "python version", without letting its pickles make anything but arrays.

The archive is ``cifar-10-python.tar.gz`` from https://www.cs.toronto.edu/~kriz/cifar.html; its
folder, unpacked, will do as well.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

CLASSES = 10
EDGE = 32
PIXELS = 3 * EDGE * EDGE
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
LARGEST_MEMBER = 64 * 2**20
"""Bytes; the archive's batches have 31 MB."""


_UNREADABLE = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, EOFError, OverflowError, RuntimeError),
)
"""What bytes that are no pickle, or another one, raise."""


class DataError(RuntimeError):
    """The data is not there, or not what it should be."""


class Images:
    """Images and their classes, in memory; batches are taken at once (see ``pass_batch``).

    Attributes:
        images: (N, 3, 32, 32), uint8.
        labels: (N,), int64.
    """

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

    def first(self, count: int | None) -> Images:
        """Return the first ``count``, or all."""
        return self if count is None else Images(self.images[:count], self.labels[:count])


def pass_batch(batch: Any) -> Any:
    """Take a batch as ``Images`` gives it; for DataLoader's ``collate_fn``."""
    return batch


def read(source: Path, limit: int | None = None) -> tuple[Images, Images]:
    """Return the images to train on and those to test with.

    Args:
        source: The archive, the folder that was in it, or a folder that holds either.
        limit: Only so many of each.

    Raises:
        DataError: if it is not there or not CIFAR-10.
    """
    opened = _open_source(source)
    return (
        _join_batches(opened, TRAIN, source).first(limit),
        _join_batches(opened, TEST, source).first(limit),
    )


def generate(count: int, test_count: int, seed: int = 0) -> tuple[Images, Images]:
    """Return made-up images of the same shape that a network can learn to tell apart.

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
    wanted = {*TRAIN, *TEST}
    if source.is_dir():
        places = (source, source / "cifar-10-batches-py")
        for place in places:
            if (place / TEST[0]).is_file():
                return {name: _file(place / name) for name in wanted}
        source = source / "cifar-10-python.tar.gz"
    try:
        with tarfile.open(source) as archive:
            return dict(_members(archive, wanted))
    except FileNotFoundError:
        raise DataError(f"{source}: no CIFAR-10 here (archive, or its folder)") from None
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{source} cannot be read: {error}") from error


def _file(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_MEMBER:
            raise DataError(f"{path} is larger than any of CIFAR-10's files")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _members(archive: tarfile.TarFile, wanted: set[str]) -> Any:
    for member in archive:
        name = member.name.rpartition("/")[2]
        if not member.isfile() or name not in wanted:
            continue
        if member.size > LARGEST_MEMBER:
            raise DataError(f"{member.name} is larger than any of CIFAR-10's files")
        content = archive.extractfile(member)
        assert content is not None
        yield name, content.read()


def _join_batches(opened: dict[str, bytes], names: tuple[str, ...], source: Path) -> Images:
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
    return Images(torch.cat(images), torch.cat(labels))


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


@dataclass
class _Type:
    """Stands for ``numpy.dtype``."""

    code: Any = b""

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: bytes have none."""


@dataclass
class _Array:
    """Stands for ``numpy.ndarray``: what its pickle says, of which only bytes are ever used."""

    state: tuple[Any, ...] = field(default=())

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
    """Unpickles containers, text and numbers; what numpy's pickles call are stand-ins."""

    _MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")

    def find_class(self, module: str, name: str) -> Any:
        stand_ins: dict[str, Any] = {
            "_reconstruct": lambda *_: _Array(),
            "ndarray": _Array,
            "dtype": lambda code, *_: _Type(code),
            "encode": lambda text, _encoding: text.encode("latin1"),
        }
        if module in self._MODULES and name in stand_ins:
            return stand_ins[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
