"""What can be put up and taken down, and stands in between. It knows no host."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Standing:
    """A context manager: up at its beginning, down at its end."""

    def up(self) -> None:
        """Put it up."""
        raise NotImplementedError

    def down(self) -> None:
        """Take it down."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()
