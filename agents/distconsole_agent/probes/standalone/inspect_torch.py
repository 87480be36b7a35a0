"""Program: imports torch as a rank would, and asks nothing of a GPU."""

from __future__ import annotations

import contextlib
import sys
import time

from distconsole_agent.probes.collectives.preloaded import serve, surroundings
from distconsole_agent.probes.standalone.reporting import FACTS, begin, find_mapped, leave, say


def facts() -> dict[str, object]:
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


def main(seconds: float, name: str = "", serve_seconds: float = 0.0, agent: int = -1) -> None:
    """Say the facts; by a ``name`` leave a process behind that forks ranks, unless the driver of GPUs is loaded.

    That process ends after ``serve_seconds``, or with the other end of the pipe ``agent``.
    """
    begin(seconds)
    source = alike = None
    with contextlib.suppress(OSError):
        alike = surroundings() if name else None
    found = facts()
    if alike and not found["error"] and not find_mapped(r"/lib(cuda|hsa-runtime64|ze_loader)\.so"):
        with contextlib.suppress(OSError):  # another host of the check is this machine
            source = serve(name, serve_seconds, agent, alike)
    if source is None:
        say(FACTS, found)
        leave()
    else:
        path = globals().get("PATH", sys.path)
        exec(source, {"__name__": "__main__", "PATH": path})  # noqa: S102 - a rank's
