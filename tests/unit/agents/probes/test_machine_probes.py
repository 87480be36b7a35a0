"""What a node says of itself, read from files of other machines: ``tests/cases/facts``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.probes import budgets

CASES = Path(__file__).parents[3] / "cases" / "facts"


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text())
    return found


def lay_out(files: dict[str, str], root: Path) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize("case", cases("control_group"), ids=lambda case: str(case["name"]))
def test_the_tightest_limit_of_control_groups_counts(case: dict[str, Any], tmp_path: Path) -> None:
    assert budgets.control_group(lay_out(case["files"], tmp_path)) == case["facts"]


def test_memory_is_read_from_meminfo(tmp_path: Path) -> None:
    text = "MemTotal:  24684100 kB\nMemFree: 1 kB\nMemAvailable:  2048 kB\nSwapTotal: 0 kB\n"
    lay_out({"meminfo": text}, tmp_path)
    assert budgets.memory(str(tmp_path)) == {
        "total": 24684100 * 1024,
        "available": 2048 * 1024,
        "swap_total": 0,
        "swap_free": None,
    }


def test_governors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    base = "sys/devices/system/cpu/cpu"
    files = {f"{base}{number}/cpufreq/scaling_governor": "performance\n" for number in range(2)}
    files |= {f"{base}2/cpufreq/scaling_governor": "powersave\n"}
    files |= {f"{base}0/cpufreq/scaling_driver": "acpi-cpufreq\n"}
    assert budgets.cpu_clocks(lay_out(files, tmp_path)) == {
        "governors": {"performance": 2, "powersave": 1},
        "driver": "acpi-cpufreq",
    }
    assert budgets.cpu_clocks(str(tmp_path / "guest"))["governors"] == {}


def test_this_machine_says_what_may_be_used_of_it() -> None:
    facts = probes.run("os", {}, 10.0)
    assert facts["memory"]["total"] >= facts["memory"]["available"] > 0
    assert facts["temporary"] in facts["filesystems"]
    assert facts["sysctl"]["somaxconn"].isdigit()
