"""paramiko, imported in half of the time; import it from here.

It asks for its own version by ``importlib.metadata``, and its own reader of ssh_config imports invoke:
60 of 140 ms of CPU, a fifth of the way to a script's first line.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_BLOCKED = "invoke"
_METADATA = "importlib.metadata"


class _Metadata(ModuleType):
    """Stands for ``importlib.metadata``: knows paramiko's version, leaves the rest to the real one."""

    def version(self, name: str) -> str:
        spec = find_spec("paramiko") if name == "paramiko" else None
        beside = Path(spec.origin).parents[1] if spec is not None and spec.origin else Path()
        found = [each.name for each in beside.glob("paramiko-*.dist-info")] if spec else []
        if len(found) == 1:
            return found[0].removesuffix(".dist-info").partition("-")[2]
        return str(self._real().version(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def _real(self) -> ModuleType:
        if sys.modules.get(_METADATA) is self:
            del sys.modules[_METADATA]
        return import_module(_METADATA)


if "paramiko" in sys.modules or _BLOCKED in sys.modules:
    import paramiko
else:
    # As if it were not installed, which paramiko allows for; afterwards others may import it.
    sys.modules[_BLOCKED] = None  # type: ignore[assignment]
    _metadata = _Metadata(_METADATA)
    sys.modules.setdefault(_METADATA, _metadata)
    try:
        import paramiko
    finally:
        del sys.modules[_BLOCKED]
        if sys.modules.get(_METADATA) is _metadata:
            del sys.modules[_METADATA]

__all__ = ["paramiko"]
