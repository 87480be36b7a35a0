"""What a node prints cannot move the operator's cursor, set a title, or turn text around."""

import pytest

from distconsole.ssh.plain import log_text, plain_lines, plain_text

ATTACKS = {
    "colour": ("a\x1b[31mb\x1b[0m", "ab"),
    "cursor": ("a\x1b[2J\x1b[1;1Hb", "ab"),
    "title by BEL": ("a\x1b]0;evil\x07b", "ab"),
    "title by ST": ("a\x1b]0;evil\x1b\\b", "ab"),
    "clipboard": ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
    "a title that never ends": ("a\x1b]0;evil", "a0;evil"),
    "device control": ("a\x1bP1$r0m\x1b\\b", "ab"),
    "eight-bit CSI": ("a\x9b31mb", "ab"),
    "eight-bit OSC": ("a\x9d0;evil\x9cb", "ab"),
    "reset": ("a\x1bcb", "ab"),
    "charset": ("a\x1b(0b", "ab"),
    "a lone ESC": ("a\x1b", "a"),
    "an ESC within a CSI": ("a\x1b[3\x1b[31mb", "a3b"),
    "control characters": ("a\x00\x07\x08\x0b\x0c\x7f\x85b", "ab"),
    "newlines": ("\na\r\n\t b \n\n", "a b "),
    "tab stays": ("a\tb", "a\tb"),
    "bidi override": ("a\u202eb\u2066c\u200f", "abc"),
    "line separator": ("a\u2028b", "ab"),
    "invisible tags": ("a\U000e0041b", "ab"),
    "half a pair": ("a\ud800b", "a\ufffdb"),
    "letters of every script": ("déjà 日本 🙂", "déjà 日本 🙂"),
    "a family of people": ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_that_a_terminal_obeys_is_left(name: str) -> None:
    text, plain = ATTACKS[name]
    assert plain_text(text) == plain
    plain_text(text).encode()


def test_cleaning_twice_changes_nothing_more() -> None:
    for text, _ in ATTACKS.values():
        assert plain_text(plain_text(text)) == plain_text(text)


def test_no_byte_below_0x20_but_tab_survives_anywhere() -> None:
    every = "".join(map(chr, range(0xA0))) * 2
    assert all(c == "\t" or (" " <= c < "\x7f") or c >= "\xa0" for c in plain_text(every))


def test_a_log_line_keeps_its_colours_and_ends_them() -> None:
    assert log_text("\x1b[1;31mred\x1b[2K\x07") == "\x1b[1;31mred\x1b[0m"
    assert log_text("\x1b[38;2;1;2;3mx\x1b[m") == "\x1b[38;2;1;2;3mx\x1b[m"
    assert log_text("plain\x08") == "plain"
    assert log_text("\x1b]0;t\x07\x1b[32mok") == "\x1b[32mok\x1b[0m"


def test_a_traceback_keeps_its_lines() -> None:
    assert plain_lines("a\r\n  b\x1b[31m\n\x07c") == "a\n  b\nc"


def test_a_long_hostile_text_takes_linear_time() -> None:
    for piece in ("\x1b]", "\x1b[", "\x1bP", "\x9d", "\x1b[9;", "\n ", "x  "):
        assert not {"\x1b", "\n"} & set(plain_text(piece * 200_000 + "\x1b"))
