"""What is said when some nodes could not. It reaches no node."""

from __future__ import annotations

import pytest

from distconsole.errors import PythonError, UnreachableError
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed
from distconsole.session import require_all


@pytest.mark.parametrize("message", ["gpu1: no python3", "no python3"])
def test_a_host_is_named_once(message: str) -> None:
    with pytest.raises(UnreachableError) as told:
        require_all([Failed(HostName("gpu1"), PythonError(message, "hint"))], "1 of 1 failed")
    assert told.value.message == "1 of 1 failed: gpu1: no python3"
