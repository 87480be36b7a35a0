"""Reads a Python stack: the line of the script's own code, its activity; equal stacks of many ranks as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath

from distconsole.model.diagnosis.calls import Call, Place
from distconsole.model.diagnosis.diagnosis import StackGroup

LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d[\d.]*t?/|/distconsole_training/(\w+/)?\w+\.py$"
    r"|/torchinductor_[^/]+/|^<|^$|\.so$"
)
"""Files that are not the script's own."""
TORCH_WAITS = re.compile(
    r"torch/(distributed/(?!checkpoint|elastic|launcher|tensor/|run\b)|nn/parallel/distributed)"
)
OTHER_WAITS = re.compile(r"/(horovod|mpi4py|deepspeed/comm)/")
BACKWARD = ("_engine_run_backward",)
MEETING = ("rendezvous", "_create_c10d_store", "init_process_group", "_store_based_barrier")
IN_NO_NAME = (
    *("wrapper", "_wait", "wait", "synchronize", "_object_to_tensor", "_tensor_to_object"),
    *("decorate_context", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"),
)
"""Functions of torch.distributed that do not show the operation, if another one does."""

DATALOADER = re.compile(r"torch/utils/data/(dataloader|_utils/\w+)\.py$")
TAKES_A_BATCH = ("_try_get_data", "_get_data", "_next_data", "_shutdown_workers")
PASSED_BY = re.compile(r"torch/(_ops|_compile|utils/_contextlib|autograd/function)\.py$")
"""Between a collective's function and the machine code that waits."""
SAVES = re.compile(
    r"torch/(serialization|distributed/checkpoint/[\w/]*)\.py$|/safetensors/|/h5py/"
)
WRITES = re.compile(r"^_?(legacy_|async_)?(save|write|dump|flush|create_dataset|__setitem__)")
"""Functions of these that do not read."""
SAVING = re.compile(r"^_?(save|write)_?(checkpoint|model|state|pretrained|ckpt|snapshot)?\w*$")
EVALUATING = re.compile(r"^_?(eval|evaluate|evaluation|validate|validation|val|test)(_\w+)?$")
COMPILES = re.compile(
    r"torch/(_dynamo/convert_frame|_functorch/_aot_autograd/graph_compile"
    r"|_inductor/(compile_fx\w*|async_compile|codecache|cpp_builder))\.py$|/triton/(compiler|runtime/build)"
)
"""Files of a compiler at work; a model that is compiled passes through others of its files at each step."""
NEAR = 8
"""Number of innermost frames that show the activity, where none is the script's own."""
IMPORTS = re.compile(r"^<frozen importlib|/importlib/(__init__|_bootstrap\w*)\.py$")
DEBUGS = re.compile(
    r"/lib(64)?/python\d[\d.]*t?/(pdb|bdb)\.py$|/(site|dist)-packages/(ipdb|pudb)/|/(_?pydevd\w*|debugpy)\b"
)
LEAVES = (
    *("destroy_process_group", "_exit_function", "_run_exitfuncs", "_python_exit"),
    *("_shutdown", "_abort_process_group"),
)
AFTER_THE_SCRIPT = ("_shutdown", "_exit_function", "_run_exitfuncs", "_python_exit")
"""Functions that Python itself calls once a script is over."""
OUTERMOST = ("<module>", "_run_module_as_main")
MOST_FRAMES = 64
"""Of a stack that an agent sends; a longer one lacks its outermost."""
SHUTS = re.compile(r"/(horovod|logging)/|torch/distributed/")
"""Whose ``shutdown`` is the end of a process; that of a pool of threads is not."""
LOCKS = re.compile(r"/(threading|queue|_weakrefset|multiprocessing/(synchronize|queues))\.py$")


class Does(StrEnum):
    """Activity of a rank, by its stack."""

    WAITS = "waits"
    """In a collective, for the other ranks."""
    MEETS = "meets"
    """In the rendezvous, or in making a group."""
    SAVES = "saves"
    EVALUATES = "evaluates"
    COMPILES = "compiles"
    IMPORTS = "imports"
    LOADS = "loads"
    """Waits for a worker of its DataLoader."""
    LEAVES = "leaves"
    """Takes its process group or itself down."""
    DEBUGS = "debugs"
    OTHER = "other"


@lru_cache(8192)
def is_library(file: str) -> bool:
    return LIBRARY.search(file) is not None


def is_over(call: Call) -> bool:
    """Return True if the main thread has ended its script: its outermost function is one that Python calls then."""
    if not call.frames or len(call.frames) >= MOST_FRAMES:
        return False
    first = call.frames[-1]
    if is_library(first.file):
        return first.function in AFTER_THE_SCRIPT
    # Functions that atexit calls have none of the script above them. Python 3.14 itself does not read all outer calls.
    return first.function not in OUTERMOST and call.way in ("py-spy", "server")


def own_place(frames: Iterable[Place]) -> Place | None:
    return next((frame for frame in frames if not is_library(frame.file)), None)


def place_text(place: Place) -> str:
    """Return ``load_image at data.py:31``."""
    line = line_text(place)
    return f"at {line}" if place.function in ("", "<module>") else f"in {place.function} at {line}"


def line_text(place: Place) -> str:
    """Return ``data.py:31``."""
    name = PurePosixPath(place.file).name
    return f"{name}:{place.line}" if place.line else name


def what_it_does(call: Call) -> Does:
    frames = call.frames
    library = _above_own(frames)
    # A program without a file of its own, such as ``python -m package``, may train inside an import.
    near = library if len(library) < len(frames) else library[:NEAR]
    imports = [at for at, frame in enumerate(near) if IMPORTS.search(frame.file)]
    if imports and not _waits_in_import(frames[: imports[0]]):  # the files inside only load
        return Does.COMPILES if _compiles(library[imports[-1] :]) else Does.IMPORTS
    if any(DEBUGS.search(frame.file) for frame in library[:12]):
        return Does.DEBUGS
    if any(_leaves(frame) for frame in frames):
        return Does.LEAVES
    if any(_is_torch(frame) and frame.function in MEETING for frame in frames):
        return Does.MEETS
    if any(DATALOADER.search(f.file) and f.function in TAKES_A_BATCH for f in library):
        return Does.LOADS
    if operation_of(frames):
        return Does.WAITS
    saves = any(SAVES.search(f.file) and WRITES.match(f.function) for f in library)
    if saves or _named(frames, SAVING):
        return Does.SAVES
    if _compiles(library):
        return Does.COMPILES
    if any(IMPORTS.search(f.file) for f in frames[:NEAR]):
        return Does.IMPORTS
    return Does.EVALUATES if _named(frames, EVALUATING) else Does.OTHER


def _compiles(frames: Sequence[Place]) -> bool:
    return any(COMPILES.search(f.file) and f.function != "<module>" for f in frames)


def evaluates(call: Call) -> bool:
    return _named(call.frames, EVALUATING)


def operation_of(frames: Sequence[Place]) -> str:
    """Return which collective a stack waits in, as ``all_reduce`` or ``backward``; nothing if in none."""
    library = list(_above_own(frames))
    while library and PASSED_BY.search(library[0].file):
        del library[0]
    if not library:
        return ""
    if library[0].function in BACKWARD:
        return "backward"
    if not _is_collective(library[0]):
        return ""
    named = [f.function for f in library if _is_collective(f) and f.function not in IN_NO_NAME]
    return (named or [library[0].function])[-1]


def waits_for_lock(frames: Sequence[Place]) -> bool:
    """Return True if the innermost frames are a lock's, a condition's, a queue's or a thread's join."""
    return bool(frames) and is_library(frames[0].file) and LOCKS.search(frames[0].file) is not None


def group_stacks(calls: Iterable[Call]) -> tuple[StackGroup, ...]:
    """Return the ranks that live and have a stack, by equal functions and files; lines are those of the first rank."""
    alike: dict[tuple[tuple[str, str], ...], list[Call]] = {}
    for call in sorted(calls, key=lambda each: each.rank):
        if call.alive and call.frames:
            own = own_place(call.frames)
            line = "" if own is None else str(own.line)
            # Of the script's own innermost frame also the line, in which two branches differ.
            key = (("", line), *((frame.function, frame.file) for frame in call.frames))
            alike.setdefault(key, []).append(call)
    groups = [
        StackGroup(
            ranks=tuple(call.rank for call in members),
            does=what_it_does(members[0]).value,
            place=own_place(members[0].frames),
            frames=members[0].frames,
        )
        for members in alike.values()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def _waits_in_import(inside: Sequence[Place]) -> bool:
    own = bool(inside) and "/torch/" not in inside[-1].file and not _is_collective(inside[-1])
    return own and bool(operation_of(inside))


def _leaves(frame: Place) -> bool:
    """Return True if a library's function ends the process or its groups, unlike any of the script's own."""
    shuts = frame.function == "shutdown" and SHUTS.search(frame.file) is not None
    return shuts or (frame.function in LEAVES and is_library(frame.file))


def _is_collective(frame: Place) -> bool:
    return _is_torch(frame) or OTHER_WAITS.search(frame.file) is not None


def _is_torch(frame: Place) -> bool:
    return TORCH_WAITS.search(frame.file) is not None


def _above_own(frames: Sequence[Place]) -> Sequence[Place]:
    for at, frame in enumerate(frames):
        if not is_library(frame.file):
            return frames[:at]
    return frames


def _named(frames: Sequence[Place], pattern: re.Pattern[str]) -> bool:
    return any(pattern.match(frame.function) and not is_library(frame.file) for frame in frames)
