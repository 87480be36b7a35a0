"""Partial failure as data: the outcome on each node of a fan-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from distconsole.errors import NodeError
from distconsole.model.names import HostName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """The node did it."""

    host: HostName
    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The node did not, and why."""

    host: HostName
    error: NodeError

    @property
    def reason(self) -> str:
        """Why, without the host's name, with which some errors begin."""
        return self.error.message.removeprefix(f"{self.host}: ")

    @property
    def text(self) -> str:
        """``gpu1: nothing answers there``: both, each once."""
        return f"{self.host}: {self.reason}"


Outcome: TypeAlias = Ok[T] | Failed


def succeeded(outcomes: Sequence[Outcome[T]]) -> list[Ok[T]]:
    return [outcome for outcome in outcomes if isinstance(outcome, Ok)]


def failed(outcomes: Sequence[Outcome[T]]) -> list[Failed]:
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]
