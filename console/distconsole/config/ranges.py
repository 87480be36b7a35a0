"""Lists and ranges of host names, ``gpu[01-08,12]``, as Slurm and pdsh write them."""

from __future__ import annotations

import re

MAX_HOSTS = 4096
"""More in one range is a slip of the finger."""
MAX_BRACKETS = 16

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class RangeError(ValueError):
    """A range that means nothing."""


def split_list(text: str, separators: str = ",") -> list[str]:
    """Split at separators outside of brackets, without blanks; raises RangeError for an empty part."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise RangeError(f"brackets do not match in '{text}'")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise RangeError(f"a bracket is not closed in '{text}'")
    parts = [part.strip() for part in parts]
    if "," in separators and "" in parts and len(parts) > 1:
        entry = parts.index("") + 1
        raise RangeError(f"entry {entry} of {len(parts)} in '{text}' is empty: a comma too many")
    return [part for part in parts if part]


def expand(text: str) -> list[str]:
    """Return the names of ``gpu[01-03]``; raises RangeError for a wrong range, or above 4,096 names."""
    if text.count("[") > MAX_BRACKETS:
        raise RangeError(f"more than {MAX_BRACKETS} ranges in one name: '{text[:80]}…'")
    found = _BRACKETS.search(text)
    if found is None:
        if "[" in text or "]" in text:
            raise RangeError(f"brackets do not match in '{text}'")
        return [text]
    heads = [f"{text[: found.start()]}{number}" for number in _numbers(found[1], text)]
    tails = expand(text[found.end() :])
    if len(heads) * len(tails) > MAX_HOSTS:
        raise RangeError(f"'{text}' stands for more than {MAX_HOSTS} hosts")
    return [head + tail for head in heads for tail in tails]


def _numbers(text: str, whole: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?\s*", part)
        if found is None:
            raise RangeError(f"'{part}' in '{whole}' is not a number or a range such as 01-08")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise RangeError(f"the range {first}-{last} in '{whole}' runs backwards")
        if int(last) - int(first) >= MAX_HOSTS:
            raise RangeError(f"'{whole}' stands for more than {MAX_HOSTS} hosts")
        if len(numbers) > MAX_HOSTS:
            raise RangeError(f"'{whole[:80]}…' stands for more than {MAX_HOSTS} hosts")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
