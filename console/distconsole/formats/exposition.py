"""Gauges in Prometheus's text exposition format 0.0.4. It knows neither runs nor hosts.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_CHARS = 200
MAX_LABELLED = 50_000
"""Values that one page holds; a rank that invents names must not fill the memory of who asks."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(slots=True)
class Page:
    """Families of gauges, each with its help, in the order in which they first came.

    A value that is unknown or NaN of nobody's making is left out; one that a rank reported as NaN or
    infinite is told as such, for that is what its loss is.
    """

    left_out: int = 0
    _families: dict[str, tuple[str, dict[str, float]]] = field(default_factory=dict)
    _count: int = 0

    def put(self, name: str, meaning: str, value: float | None, /, **labels: object) -> None:
        """Add a value; one with the same labels replaces it. None is left out."""
        if value is None:
            return
        assert _NAME.fullmatch(name), name
        _, values = self._families.setdefault(name, (meaning, {}))
        key = _labels(labels)
        if key not in values:
            if self._count >= MAX_LABELLED:
                self.left_out += 1
                return
            self._count += 1
        values[key] = float(value)

    def text(self) -> str:
        """Return the page; it ends with a line end, as the format wants."""
        lines: list[str] = []
        for name, (meaning, values) in self._families.items():
            lines.append(f"# HELP {name} {_escape_help(meaning)}")
            lines.append(f"# TYPE {name} gauge")
            lines += [f"{name}{labels} {_number(value)}" for labels, value in values.items()]
        return "\n".join(lines) + "\n" if lines else ""


def _labels(labels: dict[str, object]) -> str:
    given = [f'{name}="{_escape(str(value))}"' for name, value in labels.items() if value != ""]
    return f"{{{','.join(given)}}}" if given else ""


def _escape(value: str) -> str:
    """Return a label's value, cut, and escaped as the format has it."""
    if len(value) > MAX_LABEL_CHARS:
        value = value[: MAX_LABEL_CHARS - 1] + "…"
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
