"""Which value of a metric is the better one, by the metric's name."""

from __future__ import annotations

import math
import re

LESS = re.compile(r"loss|err|perplex|ppl")
"""A name with one of these is better when it is less, whatever else it has."""
MORE = re.compile(
    r"acc|(?:^|[^a-z0-9])(?:auc|auroc|bleu|f1|map|m?iou|precision|psnr|r2|recall|reward|rouge|score|ssim|top[-_]?[15])"
    r"(?:[^a-z0-9]|$)"
)


def more_is_better(name: str) -> bool:
    """Whether a metric of this name is the better the higher it is; all but accuracies and scores are not."""
    lowered = name.lower()
    return LESS.search(lowered) is None and MORE.search(lowered) is not None


def take_best(best: dict[str, float], name: str, value: float) -> None:
    """Put ``value`` into ``best`` if it is better than what is there; what is no number is not."""
    if math.isfinite(value):
        better = max if more_is_better(name) else min
        best[name] = better(best.get(name, value), value)
