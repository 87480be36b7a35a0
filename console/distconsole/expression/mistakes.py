"""What is wrong with a text of the language, said once and with the place."""

from __future__ import annotations

from distconsole.errors import UsageError

SHOWN_CHARS = 60
"""Of a long text only so much around the mistake is shown."""


class ExpressionError(UsageError):
    """A condition that means nothing.

    Args:
        message: What is wrong, in one line.
        text: The whole condition.
        at: Where in it, counted from 0.
        advice: What to write instead.
    """

    def __init__(self, message: str, text: str, at: int, advice: str = "") -> None:
        begin = max(0, min(at - SHOWN_CHARS // 2, len(text) - SHOWN_CHARS))
        shown = "".join(each if each.isprintable() else " " for each in text)
        excerpt = shown[begin : begin + SHOWN_CHARS]
        words = advice or "here:"
        super().__init__(
            f"{message}, at character {at + 1}", f"{words}\n  {excerpt}\n  {' ' * (at - begin)}^"
        )
        self.at = at
        self.short = f"{advice}  in: {excerpt[: at - begin]}▸{excerpt[at - begin :]}".strip()
        """The advice and the place in one line, for where lines are few."""
