"""The number of samples in a batch, by its DataLoader or its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_DEPTH = 4
_MAX_PARTS = 64
_CHANNELS = (1, 3, 4)


class Source:
    """One pass over a DataLoader, and the sizes of its batches by its iterator.

    Attributes:
        number: Counts the iterators of this process from 1.
        began: Nanoseconds at which the batch that has not arrived yet was asked for, else 0.
        full: Samples in each of its batches, counted from 1, that comes before ``full_until``.
    """

    def __init__(self, iterator: Any, number: int) -> None:
        self.number = number
        self.began = 0
        self._batch_size = self._last_size = 0
        self.full = self.full_until = 0
        # A batch from a data set without auto-collation may as well be one sample, of one tensor.
        self._agreeing = 1
        if not getattr(iterator, "_auto_collation", False):
            self._agreeing = 2
            return
        sampler = iterator._index_sampler
        # A sampler of the user's may mean something else by the same names.
        if type(sampler).__module__ != "torch.utils.data.sampler":
            return
        size = sampler.batch_size
        if type(size) is not int or size < 1:
            return
        self._batch_size = size
        if iterator._dataset_kind == 0 and getattr(iterator, "_in_order", True):
            self._learn_last(sampler, size)

    def samples(self, yielded: int, batch: Any) -> int:
        """Return the samples of ``batch``, the ``yielded``-th of this pass, counted from 1."""
        if self.full:
            if yielded < self.full_until:
                return self.full
            return self._last_size if yielded == self.full_until else 0
        size = samples_of(batch, agreeing=self._agreeing)
        return size if not self._batch_size or size <= self._batch_size else 0

    def _learn_last(self, sampler: Any, size: int) -> None:
        try:
            total = len(sampler.sampler)
        except TypeError:
            return
        whole, rest = divmod(total, size)
        self.full = size
        if rest and not sampler.drop_last:
            self.full_until, self._last_size = whole + 1, rest
        else:
            self.full_until, self._last_size = whole, size


def samples_of(batch: Any, *, agreeing: int = 1) -> int:
    """Return the samples in ``batch`` by its shape; 0 unless ``agreeing`` parts have that size, and none another."""
    sizes: list[int] = []
    if _may_be_a_list_of_samples(batch) or not _collect(batch, sizes, _MAX_DEPTH, [_MAX_PARTS]):
        return 0
    return sizes[0] if len(set(sizes)) == 1 and len(sizes) >= agreeing else 0


def _collect(part: Any, sizes: list[int], depth: int, left: list[int]) -> bool:
    """Add the sizes that ``part`` claims; False when it has become too much to look at."""
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        return False
    shape = getattr(part, "shape", None)
    if shape is not None:
        if len(shape) > 0:
            sizes.append(int(shape[0]))
        return True
    if part is None or isinstance(part, (str, bytes, bool, int, float)):
        return True
    if isinstance(part, Mapping):
        return all(_collect(value, sizes, depth - 1, left) for value in part.values())
    if isinstance(part, Sequence):
        return _collect_sequence(part, sizes, depth, left)
    held = getattr(part, "__dict__", {})
    # Sizes that a batch of graphs, or of a library, has as attributes.
    for name in ("batch_size", "num_graphs"):
        size = getattr(part, name) if name in held or hasattr(type(part), name) else 0
        if type(size) is int and size > 0:
            sizes += [size, size]  # two that agree are enough
            return True
    return bool(held) and all(_collect(value, sizes, depth - 1, left) for value in held.values())


def _collect_sequence(part: Sequence[Any], sizes: list[int], depth: int, left: list[int]) -> bool:
    if part and isinstance(part[0], (str, bytes, int, float)):
        # One word or number per sample; a lone number beside tensors gives no size.
        if len(part) > 1 and all(isinstance(one, (str, bytes, int, float)) for one in part):
            sizes.append(len(part))
        return True
    return all(_collect(value, sizes, depth - 1, left) for value in part)


def _may_be_a_list_of_samples(batch: Any) -> bool:
    """Whether ``batch`` looks like images not stacked, whose first dimension is their channels."""
    if not isinstance(batch, (list, tuple)) or not batch:
        return False
    parts = batch[0] if isinstance(batch[0], (list, tuple)) and batch[0] else batch
    shapes: list[Any] = [getattr(one, "shape", ()) for one in parts]
    return all(len(shape) == 3 and shape[0] in _CHANNELS for shape in shapes)
