"""What the conditions of each verb may name, for completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.expression import Fields
from distconsole.runs.conditions.load_fields import LOAD_FIELDS
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.conditions.summary_fields import summary_fields


def condition_fields(verb: str) -> Mapping[str, str]:
    """Return the fields of ``verb``'s conditions, each with what it is; nothing for a verb without."""
    match verb:
        case "show":
            return _about(RANK_FIELDS)
        case "top":
            return _about(LOAD_FIELDS)
        case "runs":
            return _about(summary_fields())
        case _:
            return {}


def _about(fields: Fields[Any]) -> Mapping[str, str]:
    return {each.name: each.about for each in fields}
