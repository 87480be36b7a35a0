"""ResNet-18 (He et al. 2016, arXiv:1512.03385), for small images as well as large ones."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

LARGE_FROM = 64
"""Images from this edge length on are first made four times smaller, as in the paper."""


class Block(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Take (N, inputs, H, W), return (N, outputs, H / stride, W / stride)."""
        inner = functional.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        return functional.relu(inner + self.shortcut(images))


class ResNet18(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """Eighteen layers.

    Args:
        classes: How many scores an image gets.
        edge: The images' height and width in pixels.
        width: Channels of the first of four stages, 64 in the paper; each stage doubles them.
    """

    def __init__(self, classes: int = 10, edge: int = 32, width: int = 64) -> None:
        super().__init__()
        if edge < LARGE_FROM:
            stem = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
        else:
            stem = [nn.Conv2d(3, width, 7, 2, padding=3, bias=False)]
        self.stem = nn.Sequential(*stem, nn.BatchNorm2d(width), nn.ReLU())
        self.shrink = nn.MaxPool2d(3, 2, padding=1) if edge >= LARGE_FROM else nn.Identity()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = []
        for number, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            stages.append(Block(inputs, outputs, stride=1 if number == 0 else 2))
            stages.append(Block(outputs, outputs, stride=1))
        self.stages = nn.Sequential(*stages)
        self.judge = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Take (N, 3, H, W), return one score a class, (N, classes)."""
        maps = self.stages(self.shrink(self.stem(images)))
        scores: torch.Tensor = self.judge(maps.mean(dim=(2, 3)))
        return scores
