"""Listeners as the kernel reports them; names of peers, whose resolver cannot hold up the agent."""

import socket
import time
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.probes import scripts
from distconsole_agent.probes.programs import Ended


def test_names_are_resolved_as_a_program_on_the_node_would() -> None:
    asked = ["localhost", "no-such-host.invalid"]
    found = probes.run("names", {"names": asked}, 20.0)["names"]
    assert {"127.0.0.1", "::1"} & set(found["localhost"]["addresses"])
    assert found["no-such-host.invalid"]["addresses"] == []
    assert found["no-such-host.invalid"]["error"]
    assert probes.run("names", {}, 5.0) == {"names": {}}


def test_a_resolver_that_hangs_costs_its_own_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*_: Any, **__: Any) -> Ended:
        return Ended(None, '["a", {"addresses": ["10.0.0.1"], "error": ""}]\nnoise\n', "", 1.0)

    monkeypatch.setattr(scripts, "run_program", some)
    found = probes.run("names", {"names": ["a", "b"]}, 1.0)["names"]
    assert found["a"]["addresses"] == ["10.0.0.1"]
    assert found["b"]["late"] is True
    assert "late" not in found["a"]


def test_the_name_that_is_told_to_others_is_known() -> None:
    began = time.monotonic()
    facts = probes.run("os", {}, 10.0)
    assert facts["fqdn"] == socket.getfqdn(socket.gethostname())
    assert time.monotonic() - began < 10
