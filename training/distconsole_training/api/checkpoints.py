"""Checkpoints that survive whatever happens while they are written, and fit any number of ranks.

A file is written aside, flushed to the disk and renamed: there is a whole one or none. It is read
back without unpickling objects, and with its checksums verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import re
import sys
import warnings
import zipfile
from inspect import isroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distconsole_training.api.collectives import broadcast_bytes, gather_bytes
from distconsole_training.api.world import current_world

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distconsole_training.api.world import World

ENV_CHECKPOINT = "DISTCONSOLE_CHECKPOINT"
"""The file to go on from; a launcher that restarts a job sets it."""

ENV_RUN_DIR = "DISTCONSOLE_RUN_DIR"
LAST = "checkpoint"
"""The file in the run's folder that names the checkpoint written last."""

FORMAT = 1
_NAME = re.compile(r"step-(\d{9,})\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint could not be made, or none of those that are there can be used."""


class Checkpoints:
    """The checkpoints of one job in one folder. Every rank has this object and calls its methods."""

    def __init__(
        self, folder: str | Path, *, keep: int = 3, world: World | None = None, **parts: Any
    ) -> None:
        """Name the parts of a checkpoint.

        Args:
            folder: Made if it is not there; only rank 0 reads and writes there.
            keep: How many of the newest stay.
            world: By default the one that ``setup()`` made.
            parts: Objects with ``state_dict`` and ``load_state_dict``, by name. States may hold
                tensors, numbers, text and containers of these.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint has to stay")
        self.folder = Path(folder)
        self._keep = keep
        self._world = world or current_world()
        self._parts = parts
        self._proven = False

    def save(self, step: int) -> Path | None:
        """Write a checkpoint; return its path on rank 0, None elsewhere. Every rank must call it.

        ``step`` is its number: how often the optimizer stepped, or the epoch.

        Raises OSError on rank 0 if it cannot be written (earlier ones stay as they are),
        CheckpointError if a part's state could not be read back.
        """
        world = self._world
        own = _capture_random(world.device)
        states = gather_bytes(own, world.collectives, world.rank, world.world_size)
        if world.rank:
            return None
        content = {
            "format": FORMAT,
            "step": step,
            "world_size": world.world_size,
            "parts": {
                name: _drop_functions(part.state_dict()) for name, part in self._parts.items()
            },
            # As tensors: torch before 2.2 reads no bytes back safely.
            "random": [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states],
        }
        path = self.folder / f"step-{step:09d}.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(path, content, None if self._proven else _prove)
        self._proven = True
        for old in list(self._there())[self._keep :]:
            old.unlink(missing_ok=True)
        _tell(path)
        return path

    def resume(self) -> int:
        """Go on from the newest checkpoint; return its step, or 0 if there is none.

        The file that ``DISTCONSOLE_CHECKPOINT`` names comes first. A damaged file is left out, with
        a warning, and the one before is taken. Every rank must call it.

        Raises CheckpointError if there are files but none is whole, or it is of another job.
        """
        world = self._world
        content = self._whole_one() if world.rank == 0 else b""
        content = broadcast_bytes(content, world.collectives)
        if not content:
            return 0
        if content == _DAMAGED:
            named = os.environ.get(ENV_CHECKPOINT)
            also = f", nor {named} ({ENV_CHECKPOINT})" if named else ""
            raise CheckpointError(f"none of the checkpoints in {self.folder} is whole{also}")
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        self._restore(found["parts"])
        states = [bytes(state.numpy().tobytes()) for state in found["random"]]
        _restore_random(states, world.rank, world.world_size, world.device)
        return int(found["step"])

    def _restore(self, states: dict[str, Any]) -> None:
        if lacking := sorted(self._parts.keys() - states.keys()):
            raise CheckpointError(
                f"the checkpoint has no {', '.join(lacking)}; it has {', '.join(sorted(states))}"
            )
        for name, part in self._parts.items():
            if states[name] or not isinstance(part, _Scaler):
                part.load_state_dict(states[name])

    def _whole_one(self) -> bytes:
        """Return the bytes of the newest whole file, nothing, or the mark of damage."""
        seen = False
        for path in self._candidates():
            seen = True
            try:
                content = path.read_bytes()
                _verify(content)
            except _UNUSABLE as error:
                warnings.warn(
                    f"checkpoint {path} cannot be used: {error}", RuntimeWarning, stacklevel=3
                )
            else:
                return content
        return _DAMAGED if seen else b""

    def _candidates(self) -> Iterator[Path]:
        named = os.environ.get(ENV_CHECKPOINT)
        if named:
            yield Path(named)
        for path in self._there():
            if str(path) != named:
                yield path

    def _there(self) -> Iterator[Path]:
        """Yield the checkpoints of the folder, the newest first."""
        paths = list(self.folder.iterdir()) if self.folder.is_dir() else []
        named = [(_NAME.fullmatch(path.name), path) for path in paths]
        steps = [(int(name.group(1)), path) for name, path in named if name]
        return (path for _, path in sorted(steps, reverse=True))


_DAMAGED = b"damaged"
_UNUSABLE = (
    *(OSError, RuntimeError, ValueError, KeyError, EOFError),
    *(zipfile.BadZipFile, pickle.UnpicklingError),
)
_Scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler


def _drop_functions(state: Any) -> Any:
    """Return a state without its functions, which some schedules' have (torch before 2.2)."""
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if not isroutine(value)}


def _write(path: Path, content: dict[str, Any], prove: Any) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w+b") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
            if prove is not None:
                prove(file)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _prove(file: Any) -> None:
    """Read the new file back: better to fail now than when it is needed."""
    file.seek(0)
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, TypeError, pickle.UnpicklingError) as error:
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().split("\n")[0]
        raise CheckpointError(
            f"a part's state_dict() holds what cannot be read back safely; tensors, numbers, text "
            f"and containers can: {reason}"
        ) from error


def _verify(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it is damaged")
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError("it is not a checkpoint of ours")


def _tell(path: Path) -> None:
    """Leave the path for the launcher that starts this job again."""
    folder = os.environ.get(ENV_RUN_DIR)
    if not folder:
        return
    aside = Path(folder) / f".{LAST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        aside.write_text(f"{path.absolute()}\n", encoding="utf-8")
        aside.replace(Path(folder) / LAST)


def _capture_random(device: torch.device) -> bytes:
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


def _restore_random(
    states: Sequence[bytes], rank: int, world_size: int, device: torch.device
) -> None:
    """Bring back each rank's state; on another number of ranks, seed by rank 0's state and the rank."""
    numpy = sys.modules.get("numpy")
    if len(states) != world_size:
        digest = hashlib.sha256(states[0] + rank.to_bytes(4, "little")).digest()
        seed = int.from_bytes(digest[:4], "little")
        random.seed(seed)
        torch.manual_seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        return
    state = torch.load(io.BytesIO(states[rank]), map_location="cpu", weights_only=True)
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if numpy is not None and "numpy" in state:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.asarray(keys, dtype="uint32"), *rest))
