"""Torch for the ranks of a test that is about something else: the same library, for a third of its start and end.

A rank with an optimizer and DDP costs 2.5 seconds of a core before its first step and at its end, and 0.6 with this
head: torch's optimizers and DDP import the compiler only to have it leave them alone, torch itself imports what only
export, quantization and tensors without data need, asks for the module of a frame, for which inspect resolves the path
of each module there is, and Python looks for cycles among torch's objects while it imports them, and again when it ends.
"""

from pathlib import Path

LEAN_SITE = """
import gc, sys, types
from importlib.machinery import ModuleSpec

class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

class Finder:
    last = "torch._meta_registrations"
    getmodule = None

    def find_spec(self, name, path, target=None):
        if name == "torch":
            import inspect
            self.getmodule = self.getmodule or inspect.getmodule
            inspect.getmodule = lambda *_, **__: None
        parent = sys.modules.get(name.rpartition(".")[0])
        return ModuleSpec(name, self) if name == self.last or isinstance(parent, Absent) else None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        if module.__name__ != self.last:
            return
        import inspect, torch
        inspect.getmodule = self.getmodule
        if hasattr(torch._C, "_set_generator_metaclass"):  # which what is left out does: without, no Generator
            from torch._opaque_base import OpaqueBaseMeta
            torch._C._set_generator_metaclass(OpaqueBaseMeta)
        gc.enable()
        gc.freeze()

gc.disable()
unneeded = (
    *("_native", "_strobelight", "ao", "distributed._meta_registrations", "distributions", "export", "masked"),
    *("nn.intrinsic", "nn.qat", "nn.quantizable", "nn.quantized", "onnx", "quantization", "testing"),
)
for name in unneeded:
    sys.modules["torch." + name] = Absent("torch." + name)
sys.meta_path.insert(0, Finder())
compiler = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
compiler.disable = lambda call=None, *_, **__: call
compiler.graph_break = compiler.clear_lru_cache = lambda: None
compiler.utils = compiler.trace_rules = compiler
compiler.get_optimize_ddp_mode = lambda: "ddp_optimizer"
"""
LEAN_TORCH = LEAN_SITE + "import torch\n"
"""The head of a script; ranks with the whole of torch are in ``test_run_demo`` and ``tests/hook``."""


def lean_torch(folder: Path) -> dict[str, str]:
    """Return the variables by which each Python process that imports torch imports the lean one."""
    (folder / "sitecustomize.py").write_text(LEAN_SITE)
    return {"PYTHONPATH": str(folder)}
