"""Screens as Textual exports them, made into one SVG that moves, loads nothing and is small."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

FONTS = (
    'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'
)
ROW_HEIGHT = 24.4
"""Of Rich's export; a row is 20 high to the baseline."""

_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_WINDOW = re.compile(r'<rect fill="(#\w+)" stroke="[^"]*"[^>]* width="([\d.]+)" height="([\d.]+)"')
_STYLE = re.compile(r"\.terminal-\d+-(r\d+) \{ (.*?) \}")
_TITLE = re.compile(r'-title" [^>]*>([^<]*)</text>')
_RECT = re.compile(
    r'<rect fill="([^"]+)" (x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="[\d.]+")'
)
_TEXT = re.compile(
    r'<text class="terminal-\d+-(r\d+)" (x="[\d.]+") y="([\d.]+)" (textLength="[\d.]+")[^>]*>([^<]*)</text>'
)


def picture_of(frames: Sequence[tuple[str, float]]) -> str:
    """Return one SVG that shows each exported screen for its seconds, and begins again.

    What two frames have in common is there once. A viewer that shows no animation shows the last frame, and so
    does one whose owner wants less motion.
    """
    first, last = frames[0][0], len(frames) - 1
    size = _SIZE.search(first)
    title = _TITLE.search(first)
    assert size is not None, "an SVG of Textual's"
    width, height = map(float, size.groups())
    ground = _ground(frames[last][0])
    styles: dict[str, str] = {}
    shown: dict[tuple[int, ...], list[str]] = {}
    for row, numbers in _rows([svg for svg, _ in frames], styles, ground):
        shown.setdefault(tuple(numbers), []).append(row)
    always = "".join(shown.pop(tuple(range(len(frames))), ()))
    ends = list(accumulate(seconds for _, seconds in frames))
    css = [f".{name}{{{style}}}" for style, name in styles.items()]
    groups = []
    for place, (frames_with, rows) in enumerate(sorted(shown.items())):
        css.append(_shows(f"v{place}", frames_with, ends, at_rest=last in frames_with))
        groups.append(f'<g class="v{place}">{"".join(rows)}</g>')
    lights = "".join(
        f'<circle cx="{x}" cy="22" r="7" fill="{fill}"/>'
        for x, fill in ((26, "#ff5f57"), (48, "#febc2e"), (70, "#28c840"))
    )
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">\n'
        f"<style>text{{font:20px {FONTS};white-space:pre}}\n{chr(10).join(css)}\n"
        "@media (prefers-reduced-motion:reduce){g{animation:none!important}}</style>\n"
        f'<rect fill="{ground}" stroke="#8888" x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="8"/>'
        f'{lights}<text fill="#888" text-anchor="middle" x="{width / 2:g}" y="28">{title[1] if title else ""}</text>\n'
        f'<g transform="translate(9,41)">{always}{"".join(groups)}</g>\n</svg>\n'
    )


def _ground(svg: str) -> str:
    """Return the colour behind most cells, or the window's own where most have none."""
    cells = Counter[str]()
    for fill, place, _ in _RECT.findall(svg):
        cells[fill] += round(float(place.split('"')[3]))
    window = _WINDOW.search(svg)
    assert window is not None, "an SVG of Textual's"
    fill, width, height = window[1], float(window[2]), float(window[3])
    cells[fill] += round(width * height / ROW_HEIGHT) - cells.total()
    return cells.most_common(1)[0][0]


def _rows(
    pictures: Sequence[str], styles: dict[str, str], ground: str
) -> Iterable[tuple[str, list[int]]]:
    """Yield each content that a row has, with the numbers of the frames that have it."""
    frames = [_rows_of(svg, styles, ground) for svg in pictures]
    for place in sorted({place for frame in frames for place in frame}):
        found: dict[str, list[int]] = {}
        for number, frame in enumerate(frames):
            if content := "".join(frame.get(place, ())):
                found.setdefault(content, []).append(number)
        yield from found.items()


def _rows_of(svg: str, styles: dict[str, str], ground: str) -> dict[int, list[str]]:
    """Return what an exported screen has in each row: other grounds, then text. ``styles`` gives each style a class."""
    classes = {
        name: styles.setdefault(style.replace(" ", ""), f"s{len(styles)}")
        for name, style in _STYLE.findall(svg)
    }
    rows: dict[int, list[str]] = {}
    body = svg.partition("</defs>")[2]
    for fill, place, y in _RECT.findall(body.partition('<g transform="translate(9, 41)"')[2]):
        if fill != ground:
            rows.setdefault(round(float(y) / ROW_HEIGHT), []).append(
                f'<rect fill="{fill}" {place} shape-rendering="crispEdges"/>'
            )
    for name, x, y, length, text in _TEXT.findall(body):
        if text.strip() and set(text.replace("&#160;", " ")) != {" "}:
            rows.setdefault(round((float(y) - 20) / ROW_HEIGHT), []).append(
                f'<text class="{classes[name]}" {x} y="{y}" {length}>{text.replace("&#160;", chr(160))}</text>'
            )
    return rows


def _shows(name: str, numbers: Sequence[int], ends: Sequence[float], *, at_rest: bool) -> str:
    """Return the rules by which a group is seen in these frames and in no other."""
    begins = [0.0, *ends[:-1]]
    turns = [
        f"{100 * begin / ends[-1]:.3f}%{{visibility:{'visible' if number in numbers else 'hidden'}}}"
        for number, begin in enumerate(begins)
        if number == 0 or (number in numbers) != (number - 1 in numbers)
    ]
    rest = "visible" if at_rest else "hidden"
    return (
        f"@keyframes {name}{{{''.join(turns)}}}"
        f".{name}{{visibility:{rest};animation:{name} {ends[-1]:g}s step-end infinite}}"
    )
