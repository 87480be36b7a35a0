"""Which tensors of this process have a replica on other ranks: those that may be compared.

A parameter is a replica if it is an ordinary tensor of a module that an optimizer of the script
trains, and no mark of a shard is on it (FSDP, DTensor, DeepSpeed, Megatron).
"""

from __future__ import annotations

import gc
import sys
import weakref
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_WRAPPER = "DistributedDataParallel"
_SHARDING = ("FullyShardedDataParallel", "FSDPModule")
_SHARDING_OPTIMIZERS = ("ZeroRedundancyOptimizer", "DeepSpeedZeroOptimizer")


class Replicas:
    """The tensors that are compared, searched again if the script trains others than before.

    Attributes:
        names: Of the parameters, in their order.
        wrapped: A wrapper of torch keeps them equal.
        sharded: Some trained tensor is no replica: ranks may then share batches.
        layout: A checksum of names, shapes, types and the group of ranks that has replicas.
    """

    def __init__(self, torch: Any, takes: Callable[[Any], bool]) -> None:
        self._module = torch.nn.Module
        self._takes = takes
        self._roots: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._looked_for: set[int] = set()
        self._shape: tuple[Any, ...] = ()
        self.names: list[str] = []
        self.wrapped = self.sharded = False
        self.layout = 0

    def trains(self, optimizer: Any) -> None:
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def parameters(self) -> list[Any]:
        """Return the parameters that are replicas; ``names`` and ``layout`` are theirs."""
        trained = {
            id(one) for optimizer in _living(self._optimizers) for one in _parameters_of(optimizer)
        }
        if not trained <= self._looked_for:
            # Looked for once: a scan of the heap takes a tenth of a second.
            self._looked_for |= trained
            self._roots = [weakref.ref(root) for root in self._find_roots(trained)]
        named: dict[int, tuple[str, Any]] = {}
        apart: set[int] = set()
        group: tuple[int, ...] = ()
        self.wrapped = False
        for root in _living(self._roots):
            for module in root.modules():
                if _is_a(module, _SHARDING):
                    apart.update(id(one) for one in module.parameters())
                elif _is_a(module, (_WRAPPER,)):
                    self.wrapped = True
                    group = _ranks_of(module)
                    ignored = getattr(module, "parameters_to_ignore", ())
                    apart.update(
                        id(one)
                        for name, one in module.module.named_parameters()
                        if name in ignored
                    )
            for name, one in root.named_parameters():
                named.setdefault(id(one), (name, one))
        kept = [
            (name, one)
            for number, (name, one) in named.items()
            if number not in apart and self._takes(one) and not _is_a_shard(one)
        ]
        self.sharded = not trained <= {id(one) for _, one in kept}
        self._describe(kept, group)
        return [one for _, one in kept]

    def states(self, parameters: Sequence[Any]) -> list[Any]:
        """Return the tensors and numbers that the optimizers keep for ``parameters``, in order."""
        optimizers = _living(self._optimizers)
        if any(_is_a(optimizer, _SHARDING_OPTIMIZERS) for optimizer in optimizers):
            return []
        compared = {id(one) for one in parameters}
        found: list[Any] = []
        for optimizer in optimizers:
            for one in _parameters_of(optimizer):
                state = optimizer.state.get(one) if id(one) in compared else None
                if isinstance(state, dict):
                    found += [state[name] for name in sorted(state, key=str)]
        return [one for one in found if type(one) in (int, float) or self._takes(one)]

    def _find_roots(self, trained: set[int]) -> list[Any]:
        """Return the outermost modules that hold trained parameters, the largest first."""
        module = self._module
        # By type(): asking an object for its class may run code of the script.
        modules = [one for one in gc.get_objects() if issubclass(type(one), module)]
        inner = {
            id(child)
            for one in modules
            for child in (one.__dict__.get("_modules") or {}).values()
            if child is not None
        }
        outer = [
            (one, {id(parameter) for parameter in one.parameters()})
            for one in modules
            if id(one) not in inner and "_modules" in one.__dict__
        ]
        roots = []
        for one, held in sorted(outer, key=lambda found: len(found[1]), reverse=True):
            if held & trained:
                trained = trained - held
                roots.append(one)
        return roots

    def _describe(self, kept: Sequence[tuple[str, Any]], group: tuple[int, ...]) -> None:
        shape = tuple((name, tuple(one.shape), one.stride(), str(one.dtype)) for name, one in kept)
        if (shape, group) != self._shape:
            self._shape = (shape, group)
            self.names = [_short(name) for name, _ in kept]
            self.layout = zlib.crc32(repr(self._shape).encode("utf-8", "replace"))


def _living(known: Sequence[weakref.ref[Any]]) -> list[Any]:
    return [one for one in (reference() for reference in known) if one is not None]


def _parameters_of(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _is_a(thing: Any, names: Sequence[str]) -> bool:
    return any(kind.__name__ in names for kind in type(thing).__mro__)


def _is_a_shard(parameter: Any) -> bool:
    """Return True if an engine marked the parameter as one that its replicas do not share."""
    return (
        hasattr(parameter, "ds_id")
        or getattr(parameter, "tensor_model_parallel", False) is True
        or getattr(parameter, "allreduce", True) is False
    )


def _ranks_of(wrapper: Any) -> tuple[int, ...]:
    """Return the ranks that a DistributedDataParallel keeps equal, by its process group."""
    ranks = getattr(sys.modules.get("torch.distributed"), "get_process_group_ranks", None)
    group = getattr(wrapper, "process_group", None)
    return tuple(ranks(group)) if ranks is not None and group is not None else ()


def _short(name: str) -> str:
    """Return the script's name of a parameter, without the prefixes of wrappers."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name[len("module.") :]
    return name
