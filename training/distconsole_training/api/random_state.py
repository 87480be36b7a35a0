"""The random numbers of a rank, kept and brought back: Python's, torch's, the GPU's, numpy's."""

from __future__ import annotations

import hashlib
import io
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def captured(device: torch.device) -> bytes:
    """Return the state of every generator that this process has."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (str(kind), [int(key) for key in keys], *rest)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def restore(states: Sequence[bytes], rank: int, world_size: int, device: torch.device) -> None:
    """Bring back what ``captured`` gave on each rank.

    On another number of ranks there is no state of one's own: each rank is then seeded by rank
    0's state and its rank.
    """
    if len(states) != world_size:
        digest = hashlib.sha256(states[0] + rank.to_bytes(4, "little")).digest()
        _seed(int.from_bytes(digest[:4], "little"))
        return
    state = torch.load(io.BytesIO(states[rank]), map_location="cpu", weights_only=True)
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.asarray(keys, dtype="uint32"), *rest))


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
