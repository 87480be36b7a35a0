"""Torch for the ranks of a test that is about something else: the same library, for a third of its start and end.

A rank with an optimizer and DDP costs 2.5 seconds of a core before its first step and at its end, and 0.65 with this
head: torch's optimizers and DDP import the compiler only to have it leave them alone, torch itself imports what only
export and tensors without data need, and Python looks for cycles among torch's objects while it imports them, and
again when it ends.
"""

from __future__ import annotations

from pathlib import Path

ABSENT = """
import gc, sys, types

class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

gc.disable()
for name in ("_meta_registrations", "distributed._meta_registrations", "export"):
    sys.modules["torch." + name] = Absent("torch." + name)
"""

LEAN_TORCH = f"""{ABSENT}
import torch
if hasattr(torch._C, "_set_generator_metaclass"):  # which what is left out does, and without which there is no Generator
    from torch._opaque_base import OpaqueBaseMeta
    torch._C._set_generator_metaclass(OpaqueBaseMeta)
gc.enable()
gc.freeze()
compiler = sys.modules["torch._dynamo"] = torch._dynamo = types.ModuleType("torch._dynamo")
compiler.disable = lambda call=None, *_, **__: call
compiler.graph_break = compiler.clear_lru_cache = lambda: None
compiler.utils = compiler.trace_rules = compiler
compiler.get_optimize_ddp_mode = lambda: "ddp_optimizer"
"""
"""The head of a script; the ranks of torch's launcher in ``test_every_launcher`` have the whole of torch."""

SITE = f"""{ABSENT}
import atexit
atexit.register(gc.freeze)
"""


def lean_torchrun(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the variable by which a torchrun costs half: it starts ranks, and uses none of what it imports."""
    site = folder / "lean"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return (("PYTHONPATH", str(site)),)
