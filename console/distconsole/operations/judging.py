"""Rows by the conditions of a request: selected ones, and bad ones."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Generic, TypeVar

from distconsole.errors import UnavailableError
from distconsole.expression import Fields, parse_condition
from distconsole.model.cluster import Cluster
from distconsole.model.events import ConditionJudged, Narration

Row = TypeVar("Row")


class Judge(Generic[Row]):
    """The conditions of one request, made ready before anything is fetched.

    Args:
        fields: Fields of the rows.
        only: Only rows that match this; None wants all.
        fail_if: Matching rows of the selected ones are bad; None judges none.
        always_some: Whether the absence of rows is an error.

    Raises UsageError if a condition means nothing.
    """

    def __init__(
        self,
        fields: Fields[Row],
        only: str | None,
        fail_if: str | None,
        *,
        always_some: bool = False,
    ) -> None:
        self._of = fields.of
        self._only = None if only is None else parse_condition(only, fields)
        self._fail_if = None if fail_if is None else parse_condition(fail_if, fields)
        self._always_some = always_some

    @property
    def asks(self) -> bool:
        return self._only is not None or self._fail_if is not None

    @property
    def names(self) -> tuple[str, ...]:
        both = (each for each in (self._fail_if, self._only) if each is not None)
        return tuple(dict.fromkeys(name for each in both for name in each.names))

    def judge(self, rows: Sequence[Row]) -> tuple[list[Row], list[ConditionJudged | Narration]]:
        """Return the selected ``rows``, and the verdict on them if one was asked for, or that none was selected.

        Figures over rows are over all that are given. Raises UnavailableError if nothing is known of
        what ``fail_if`` asks: that is no health.
        """
        if self._only is not None:
            matches = zip(rows, self._only.answers(rows), strict=True)
            wanted = [(at, row) for at, (row, match) in enumerate(matches) if match is True]
        else:
            wanted = list(enumerate(rows))
        if self._fail_if is None:
            none = f"--where fits none of the {self._of} ({len(rows):,})"
            return [row for _, row in wanted], [] if wanted or not rows else [Narration(text=none)]
        every = list(self._fail_if.answers(rows))
        answers = [every[at] for at, _ in wanted]
        if all(answer is None for answer in answers) and (answers or self._always_some):
            raise UnavailableError(
                f"'{self._fail_if.text}' cannot be judged: of {len(answers)} {self._of} none is known to match or not",
                "what it asks was not measured; docs/reference/expressions.md says what each field needs",
            )
        bad = [row for (_, row), answer in zip(wanted, answers, strict=True) if answer]
        verdict = ConditionJudged(
            condition=self._fail_if.text,
            of=self._of,
            matched=len(bad),
            asked=len(answers),
            unknown=answers.count(None),
        )
        return bad, [verdict]


def my_names(cluster: Cluster) -> tuple[str, ...]:
    """Return the operator's user names: here, and on the hosts as they were named."""
    try:
        here = [getpass.getuser()]
    except (OSError, KeyError):  # a container may run as a number without a name
        here = []
    return tuple(dict.fromkeys([*here, *(host.user for host in cluster.hosts if host.user)]))
