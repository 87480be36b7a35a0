"""Program: imports torch as a rank would, and asks nothing of a GPU."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from distconsole_agent.probes.standalone.reporting import FACTS, begin, find_mapped, leave, say


def facts() -> dict[str, Any]:
    began = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as error:
        return {"present": error.name != "torch", "error": str(error)[:500], "seconds": 0.0}
    except (ImportError, OSError, RuntimeError, AttributeError, SyntaxError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        return {"present": True, "error": text[:500], "seconds": time.monotonic() - began}
    seconds = time.monotonic() - began
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    version = None
    with contextlib.suppress(Exception):
        found = torch._C._nccl_version()
        # As torch.cuda.nccl.version() takes it apart.
        version = f"{found >> 32}.{(found >> 16) & 0xFFFF}.{found & 0xFFFF}"
    return {
        "present": True,
        "error": "",
        "seconds": seconds,
        "version": str(torch.__version__),
        "architectures": str(flags() or "").split() if flags is not None else [],
        "nccl": version,
        "nccl_mapped": find_mapped(r"/lib[nr]ccl\.so"),
    }


def main(seconds: float) -> None:
    begin(seconds)
    say(FACTS, facts())
    leave()
