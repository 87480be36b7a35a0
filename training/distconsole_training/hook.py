"""Hears when the script has imported torch, or what belongs to it."""

from __future__ import annotations

import sys

from distconsole_training.guard import drop_this_frame, guarded
from distconsole_training.process import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def find(name: str, path: Any, target: Any, asking: Any) -> Any:
    """Return the spec that the finders after ``asking`` find; its module is listened to."""
    for finder in sys.meta_path:
        find_spec = None if finder is asking else getattr(finder, "find_spec", None)
        spec = None if find_spec is None else find_spec(name, path, target)
        if spec is not None:
            _listen(spec)
            return spec
    return None


def _listen_to(spec: Any) -> None:
    loader = spec.loader
    if hasattr(loader, "__dict__") and not isinstance(loader, type):
        # An attribute of this one loader, and gone before the module runs: the module keeps the
        # loader and the spec that it would have without us.
        loader.exec_module = _pass_as_import(_exec_and_tell(loader))


_listen = guarded(_listen_to)


def _exec_and_tell(loader: Any) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        try:
            loader.exec_module(module)
        except BaseException:
            drop_this_frame()
            raise
        _executed(module)

    return exec_module


def _pass_as_import(function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Have ``function`` count as a frame of the import system.

    The interpreter then leaves it out of the traceback of a module that fails to import, and
    ``warnings`` does not count it among the callers of a module.
    """
    code: Any = function.__code__
    function.__code__ = code.replace(
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
    )
    return function


def _install_into(module: Any) -> None:
    if module.__name__ == "torch":
        process.phase("import_torch")
    from distconsole_training.torch_hook import torch_patches

    if module.__name__ == "torch":
        torch_patches.install(module)
    elif module.__name__ == "torch._dynamo.eval_frame":
        torch_patches.hide_from_compiler(module)
    elif module.__name__ == "horovod.common.basics":
        torch_patches.install_horovod(module.HorovodBasics)
    else:
        torch_patches.install_scaler(module.ShardedGradScaler)


_executed = guarded(_install_into)
