"""ResNet-18 on a folder of images as ImageNet's: ``train/CLASS/*`` and ``val/CLASS/*``.

``python -m distconsole_training.recipes.imagefolder --data FOLDER --edge 224 --workers 4`` with
the options and the loop of ``cifar10``. JPEG, PNG and WebP are decoded by Pillow; ``.npy`` files
(height, width, 3; uint8) by numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from distconsole_training.recipes.images import DataError, make_parser, run

if TYPE_CHECKING:
    import argparse

DECODED = (".jpg", ".jpeg", ".png", ".webp")
ARRAYS = (".npy",)


def main() -> None:
    parser = make_parser("imagefolder", __doc__)
    parser.add_argument("--edge", type=int, default=224, help="pixels that the network sees")
    run(parser, _data)


def _data(options: argparse.Namespace) -> tuple[ImageFolder, ImageFolder, int]:
    root = Path(options.data)
    train_set = ImageFolder(root / "train", options.edge, crops=True, limit=options.limit)
    test_set = ImageFolder(root / "val", options.edge, crops=False, limit=options.limit)
    if train_set.classes != test_set.classes:
        differing = set(train_set.classes) ^ set(test_set.classes)
        raise DataError(f"{root}: train and val have not the same classes: {sorted(differing)}")
    return train_set, test_set, len(train_set.classes)


class ImageFolder:
    """The images of a folder that has one folder for each class.

    Args:
        edge: Height and width to which each image is resized.
        crops: Take a square at random, as in training; else the middle.
        limit: Largest number of images, taken at equal distances.
    """

    def __init__(self, root: Path, edge: int, *, crops: bool, limit: int | None = None) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; wanted train/CLASS/* and val/CLASS/*")
        self.classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        self._edge = edge
        self._crops = crops
        found = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
            if path.suffix.lower() in DECODED + ARRAYS
        ]
        if not found:
            raise DataError(f"{root}: no image in any of its {len(self.classes)} folders")
        self._files = found[:: -(-len(found) // limit)] if limit else found
        if any(path.suffix.lower() in DECODED for path, _ in self._files):
            _pillow()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image (3, edge, edge), uint8, and its class."""
        path, label = self._files[index]
        image = decode(path)
        height, width = image.shape[1:]
        shorter = min(height, width)
        if self._crops:  # a square with 8 to 100 % of the area of the largest
            side = max(1, round(shorter * float(torch.empty(()).uniform_(0.08, 1)) ** 0.5))
            top = int(torch.randint(0, height - side + 1, ()))
            left = int(torch.randint(0, width - side + 1, ()))
        else:
            side = max(1, shorter * 7 // 8)
            top, left = (height - side) // 2, (width - side) // 2
        part = image[None, :, top : top + side, left : left + side].float()
        sized = functional.interpolate(
            part, (self._edge, self._edge), mode="bilinear", antialias=True
        )
        return sized[0].round().clamp(0, 255).to(torch.uint8), label


def decode(path: Path) -> torch.Tensor:
    """Return the image in a file, (3, height, width) uint8; raises DataError if it is none."""
    import numpy

    try:
        if path.suffix.lower() in ARRAYS:
            array = numpy.load(path, allow_pickle=False)
        else:
            with _pillow().open(path) as image:
                array = numpy.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be decoded: {error}") from error
    if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise DataError(
            f"{path} is {array.dtype} of shape {array.shape}, wanted uint8 (height, width, 3)"
        )
    return torch.from_numpy(array).permute(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"JPEG and PNG are decoded by Pillow, and {sys.executable} has none: "
            f"pip install pillow, or give .npy files"
        ) from error
    return Image


if __name__ == "__main__":
    main()
