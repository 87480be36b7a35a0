"""Lies as ``sitecustomize.py`` in a folder on PYTHONPATH: starts to listen for torch, steps aside.

It imports nothing of ours before the script has imported torch or failed: every Python process of
a run pays for this file. It leaves the process as it would be without it: ``sys.path``
without our folder, and the next ``sitecustomize`` (the user's, the distribution's), or none.
"""

# Importing pathlib would cost more than everything else here.
# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "distconsole_training"
AWAITED = frozenset(
    (
        "torch",
        "torch.distributed.fsdp.sharded_grad_scaler",
        "torch._dynamo.eval_frame",
        "torch.distributed._functional_collectives",
        "horovod.common.basics",
        "horovod.torch.mpi_ops",
    )
)
UNUSABLE = (ImportError, MemoryError, OSError, SyntaxError, ValueError)
"""Exceptions from importing our package when its folder is gone or damaged; the script goes on."""


class _Finder:
    """Finds our package in its folder, and hands awaited modules to ``hook``.

    Attributes:
        distconsole_started: Start of this process (CLOCK_MONOTONIC, UNIX, in nanoseconds), and
            True for a child of the script's; ``process`` looks for it in ``sys.meta_path``.
    """

    def __init__(self, folder: str, *, listens: bool) -> None:
        self._folder = folder
        self._awaited = AWAITED if listens else frozenset(())
        self.began(is_child="--multiprocessing-fork" in getattr(sys, "argv", ()))

    def began(self, *, is_child: bool) -> None:
        self.distconsole_started = time.monotonic_ns(), time.time_ns(), is_child

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == PACKAGE:
            finder = sys.modules["_frozen_importlib_external"].PathFinder
            return finder.find_spec(name, [self._folder], target)
        if name not in self._awaited:
            return None
        try:
            from distconsole_training.torch_hook.torch_patches import find
        except UNUSABLE:
            return None
        return find(name, path, target, self)

    def forked(self) -> None:
        self.began(is_child=True)
        process = sys.modules.get(PACKAGE + ".process")
        if process is not None:
            process.forked()


def _listen(finder: _Finder) -> None:
    os.register_at_fork(after_in_child=finder.forked)
    # Registered first, so it runs after every exit handler of the script.
    atexit.register(_at_exit)
    previous = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        if error is getattr(sys, "last_value", None):  # else the script, which goes on, calls it
            _note(error)
        previous(kind, error, trace)

    # code.py and exceptiongroup change what they print where the two differ.
    if previous is sys.__excepthook__:
        sys.__excepthook__ = excepthook
    sys.excepthook = excepthook


def _note(error: Any) -> None:
    # Ctrl-C is a stop and no failure. And the imports for a note evaluate text (namedtuple), upon
    # which CPython forgets that it was about to end by SIGINT.
    time_ns = time.time_ns()
    if not isinstance(error, BaseException) or isinstance(error, KeyboardInterrupt):
        return
    # A json.py beside the script is not to run because the script has failed.
    path, library = sys.path, os.path.dirname(getattr(os, "__file__", os.sep))
    sys.path = [library, os.path.join(library, "lib-dynload"), *path]
    try:
        from distconsole_training.process import note
    except UNUSABLE:
        pass
    else:
        note(error, time_ns)
    finally:
        sys.path = path


def _at_exit() -> None:
    # If the script has set a hook of its own, the interpreter still has the last exception.
    _note(getattr(sys, "last_value", None))
    process = sys.modules.get(PACKAGE + ".process")
    if process is not None:
        process.finish()


_folder = os.path.dirname(os.path.abspath(__file__))
_off = os.environ.get("DISTCONSOLE_HOOK") == "0"
_wanted = not _off and all(
    os.environ.get(name) for name in ("DISTCONSOLE_RUN", "DISTCONSOLE_RINGS")
)
_finder = _Finder(_folder, listens=_wanted)
if not _off:
    sys.meta_path.insert(0, _finder)
if _wanted:
    _listen(_finder)
sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _folder]
sys.modules.pop("sitecustomize", None)

try:
    # The next one on the path. Where there is none, ``site`` expects exactly this ImportError.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except BaseException as error:
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    raise
