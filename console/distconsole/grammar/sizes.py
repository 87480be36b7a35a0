"""Numbers of bytes as options take them."""

from __future__ import annotations

from typing import Any

import click

LEAST_LIMIT = 1 << 20


class SizeValue(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: ``500MB``, ``8GiB`` and ``1048576`` are understood; all are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.

        Raises:
            click.BadParameter: if it is no size, or less than a limit can be.
        """
        from distconsole.config.expect import size_of  # noqa: PLC0415 - most lines hold no size

        text = str(int(value)) if isinstance(value, float) else str(value)
        size = size_of(text)
        if size is None:
            self.fail(f"{text!r} is not a size such as 500MB or 8GiB", param, ctx)
        if size < LEAST_LIMIT:
            self.fail(f"{text!r} is too little: give at least 1MB", param, ctx)
        return int(size)
