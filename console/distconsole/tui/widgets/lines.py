"""Words that stay where they are: a line or a few, drawn again only when they changed."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.widgets import Static


class Words(Static):
    """Text that costs nothing while it stays the same; brackets in it mean nothing."""

    def __init__(self, content: Text | str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(content, id=id, markup=False)

    def show(self, content: Content | Text | str) -> None:
        before = self.content
        same = content == before
        if isinstance(content, Content) and isinstance(before, Content):
            same = content.is_same(before)  # colours count, too
        if same:
            return
        lines = str(content).count("\n") == str(before).count("\n")
        fixed = self.styles.height is not None and not self.styles.height.is_auto
        self.update(content, layout=not (fixed and lines))

    def recolour(self) -> None:
        self.update(self.content, layout=False)


class Line(Words):
    """One line; what there is no room for is cut."""

    DEFAULT_CSS = "Line { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"
