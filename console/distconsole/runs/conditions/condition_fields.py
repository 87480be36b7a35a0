"""The fields in the conditions of each verb, for completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.expression import Fields
from distconsole.runs.conditions.load_fields import LOAD_FIELDS
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.conditions.summary_fields import summary_fields


def condition_fields(verb: str) -> Mapping[str, str]:
    """Return the fields of ``verb``'s conditions, each with its description; empty for a verb without."""
    fields: dict[str, Fields[Any]] = {
        "show": RANK_FIELDS,
        "top": LOAD_FIELDS,
        "runs": summary_fields(),
    }
    return {each.name: each.about for each in fields.get(verb, ())}
