"""What the hook does with the operators that TorchScript takes functions for, also in a torch that has no list of them."""

import sys
from types import ModuleType

import pytest

from distconsole_training.torch_hook.torch_patches import _as_builtin

TABLE = "torch.jit._builtins"


@pytest.mark.parametrize("has", ["nothing", "_find_builtin", "_register_builtin"])
def test_a_torch_without_the_list_or_its_functions_is_watched_all_the_same(
    monkeypatch: pytest.MonkeyPatch, has: str
) -> None:
    table = ModuleType(TABLE)
    setattr(table, has, lambda *_: "aten::wait")
    monkeypatch.setitem(sys.modules, TABLE, table)
    assert _as_builtin(len, repr) is repr
    monkeypatch.delitem(sys.modules, TABLE)
    assert _as_builtin(len, repr) is repr
