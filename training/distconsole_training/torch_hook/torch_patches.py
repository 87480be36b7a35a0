"""Hears when the script has imported torch or Horovod, and holds on to them: public hooks, and eleven wrapped functions."""

from __future__ import annotations

import functools
import os
import sys
import time
from functools import partial
from types import CodeType, FunctionType

from distconsole_training.guard import drop_this_frame, guarded
from distconsole_training.identity import from_horovod, from_request
from distconsole_training.process import note, process
from distconsole_training.records import ENV_VERIFY
from distconsole_training.torch_hook import worker_server
from distconsole_training.torch_hook.step_records import refine_identity
from distconsole_training.torch_hook.torch_steps import TorchSteps
from distconsole_training.torch_hook.waits import timed
from distconsole_training.torch_hook.wrapped_calls import (
    NextAndTell,
    backward_that_tells,
    hook_after_step,
    hook_before_step,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

_PACKAGE = __name__.partition(".")[0]

watching: list[TorchSteps] = []
"""Holds the one that listens, once torch is there."""


def find(name: str, path: Any, target: Any, asking: Any) -> Any:
    """Return the spec that the finders after ``asking`` find; its module is listened to."""
    for finder in sys.meta_path:
        find_spec = None if finder is asking else getattr(finder, "find_spec", None)
        spec = None if find_spec is None else find_spec(name, path, target)
        if spec is not None:
            guarded(_listen_to)(spec)
            return spec
    return None


def _listen_to(spec: Any) -> None:
    loader = spec.loader
    if hasattr(loader, "__dict__") and not isinstance(loader, type):
        # An attribute of this one loader, and gone before the module runs: the module keeps the
        # loader and the spec that it would have without us.
        loader.exec_module = _pass_as_import(_exec_and_tell(loader))


def _exec_and_tell(loader: Any) -> Callable[[ModuleType], None]:
    installed = guarded(_install_into)

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        try:
            loader.exec_module(module)
        except BaseException:
            drop_this_frame()
            raise
        installed(module)

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
        _install(module)
    elif module.__name__ == "torch._dynamo.eval_frame":
        _hide_from_compiler(module)
    elif module.__name__ == "horovod.common.basics":
        basics = module.HorovodBasics
        basics.init = _wrap(basics.init, before=_ask_for_horovod, after=_join_horovod)
    elif module.__name__ == "horovod.torch.mpi_ops":
        _time(module.mpi_lib, "horovod_torch_wait_and_clear")
    elif module.__name__ == "torch.distributed._functional_collectives":
        # The function that the operator calls: torch.compile sees the operator, and ``wait_tensor`` as it is.
        operators: Any = sys.modules["torch"].ops._c10d_functional
        if hasattr(operators, "wait_tensor"):
            _time(operators.wait_tensor, "_op")
        else:
            _time(module, "wait_tensor")  # before torch 2.2
    else:
        for watch in watching:
            _wrap_scaler(module.ShardedGradScaler, watch)


def _install(torch: Any) -> None:
    """Listen to ``torch``; a function that its version lacks costs only that function's facts."""
    verifier = guarded(_find_verifier)(torch)
    watch = TorchSteps(torch, None if verifier is None else verifier.emit)
    watching.append(watch)
    process.on_fork.append(watch.forget)
    process.before_finish.append(watch.finish)
    steps = () if verifier is None else (verifier.listen,)
    for step in (
        *steps,
        _listen_to_optimizers,
        _listen_to_loaders,
        _listen_to_backward,
        _listen_to_scalers,
        _listen_to_process_groups,
        _listen_to_waits,
        _listen_to_spawned,
    ):
        guarded(step)(torch, watch)


def _find_verifier(torch: Any) -> Any:
    every = os.environ.get(ENV_VERIFY, "")
    if not (every.isascii() and every.isdigit() and int(every[:9]) > 0):
        return None
    from distconsole_training.torch_hook import torch_verify

    return torch_verify.Verifier(torch, int(every[:9]))


def _wrap(
    original: Any,
    *,
    before: Callable[[Any, Any], None] | None = None,
    after: Callable[[Any, Any], None] | None = None,
    is_compiling: Callable[[], bool] = bool,
) -> Any:
    """Return ``original`` that calls ``before`` with its arguments and ``after`` with these and the result."""
    begin = None if before is None else guarded(before)
    end = None if after is None else guarded(after)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if begin is not None and not is_compiling():
            begin(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            drop_this_frame()
            raise
        if end is not None and not is_compiling():
            end((*args, *kwargs.values()), result)
        return result

    return call


def _listen_to_optimizers(torch: Any, watch: TorchSteps) -> None:
    # torch.optim takes the names of its submodules away.
    home: Any = sys.modules["torch.optim.optimizer"]
    home.register_optimizer_step_pre_hook(hook_before_step(watch))
    home.register_optimizer_step_post_hook(hook_after_step(watch))


def _listen_to_loaders(torch: Any, watch: TorchSteps) -> None:
    kind: Any = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    kind.__next__ = NextAndTell(kind.__next__, watch)


def _listen_to_backward(torch: Any, watch: TorchSteps) -> None:
    original = torch.autograd.backward
    torch.autograd.backward = _as_builtin(original, backward_that_tells(original, watch))


def _listen_to_scalers(torch: Any, watch: TorchSteps) -> None:
    kinds = [
        getattr(sys.modules.get(name), "GradScaler", None)
        for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")
    ]
    for kind in dict.fromkeys(kind for kind in kinds if kind is not None):
        _wrap_scaler(kind, watch)


def _wrap_scaler(kind: Any, watch: TorchSteps) -> None:
    """Wrap the methods that ``kind`` defines itself; inherited ones are wrapped in their own class."""
    if "scale" in vars(kind):
        kind.scale = _wrap(
            kind.scale,
            after=lambda args, scaled: watch.scaled(args[1], scaled),
            is_compiling=watch.is_compiling,
        )
    if "update" in vars(kind):
        kind.update = _wrap(
            kind.update,
            before=lambda args, _: watch.scaler_updates(args[0]),
            is_compiling=watch.is_compiling,
        )


def _listen_to_process_groups(torch: Any, watch: TorchSteps) -> None:
    home = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(home, "init_process_group", None)
    if original is None:
        return
    wrapper = _wrap(original, before=_ask_for_process_group, after=_join_process_group)
    for name in (
        "torch.distributed.distributed_c10d",
        "torch.distributed",
        "torch.distributed.device_mesh",
    ):
        module: Any = sys.modules.get(name)
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = wrapper


def _listen_to_waits(torch: Any, watch: TorchSteps) -> None:
    distributed: Any = torch.distributed
    if distributed.is_available():
        _time(distributed.Work, "wait")
        _time(distributed, "_broadcast_coalesced")


def _time(home: Any, name: str) -> None:
    """Have the waits measure how long the function ``name`` of ``home`` blocks."""
    for watch in watching:
        original = getattr(home, name)
        wrapper = _as_builtin(original, timed(original, watch.waits, watch.is_compiling))
        kind = type(original)
        # pybind11's methods keep their type for code that inspects them, such as torch.compile.
        setattr(home, name, kind(wrapper) if kind.__name__ == "instancemethod" else wrapper)


def _as_builtin(original: Any, wrapper: Any) -> Any:
    """Return ``wrapper``, which TorchScript takes for the operator that it takes ``original`` for."""
    table = sys.modules.get("torch.jit._builtins")
    find, register = (getattr(table, f"_{name}_builtin", None) for name in ("find", "register"))
    operator = find and find(original)
    if register and operator is not None:
        register(wrapper, operator)
    return wrapper


def _have_others() -> None:
    for watch in watching:
        watch.waits.begin()


def _listen_to_spawned(torch: Any, watch: TorchSteps) -> None:
    """Note the exception of a rank of ``mp.spawn``: its parent may first see another one that ended by it."""
    home: Any = sys.modules["torch.multiprocessing.spawn"]
    original = home._wrap

    @functools.wraps(original)
    def call(*args: Any) -> None:
        try:
            original(*args)
        except BaseException as end:
            error = end.__context__
            trace = None if error is None else error.__traceback__
            # It has reached torch's function: the script has not caught it.
            if (
                error is not None
                and trace is not None
                and trace.tb_frame.f_code is original.__code__
            ):
                note(error, time.time_ns())
            drop_this_frame()
            raise

    home._wrap = call


def _ask_for_process_group(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    process.recorder()
    process.phase("rendezvous", from_request(arguments, keywords, os.environ))
    worker_server.start(sys.modules["torch"])


def _join_process_group(_arguments: Any, _result: Any) -> None:
    refine_identity()
    _have_others()
    process.phase("init_process_group", process.identity)


def _ask_for_horovod(_arguments: Any, _keywords: Any) -> None:
    process.recorder()
    process.phase("rendezvous")


def _join_horovod(arguments: Any, _result: Any) -> None:
    process.grouped = True
    _have_others()
    process.identify(partial(from_horovod, arguments[0]))
    process.phase("init_process_group", process.identity)


def _hide_from_compiler(eval_frame: Any) -> None:
    """Keep ``torch._dynamo.eval_frame`` from compiling our functions.

    It would when compiled code of the script, interrupted at a graph break, calls one of them.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE:
            for code in _codes_of(module, name):
                eval_frame.skip_code(code)


def _codes_of(holder: Any, home: str) -> Iterator[CodeType]:
    for value in list(vars(holder).values()):
        if getattr(value, "__module__", None) != home:
            continue
        if isinstance(value, FunctionType):
            yield from _inner_codes(value.__code__)
        elif isinstance(value, type):
            yield from _codes_of(value, home)


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inner_codes(constant)
