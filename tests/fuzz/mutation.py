"""Input made of input: bytes and lines are changed, repeated and joined, and words that readers trip over put in."""

import random
from collections.abc import Sequence

WORDS = (
    *(b"\x00", b"\n", b"\r", b"\x1b[31m", b"\x1b]0;t\x07", b"\x9b2J", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xae"),
    *("²".encode(), "٣".encode(), b"\xc2\x85", b"\xe2\x80\xa8", b"-1", b"0", b"1e999", b"nan", b"NaN", b"Infinity"),
    *(b"9" * 19, b"9" * 400, b"9" * 5000, b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"[" * 3000, b"(" * 3000),
    *(b"$(touch x)", b"`touch x`", b"${HOME}", b"%h", b"%", b"{}", b"{0}", b"../../x", b"~", b"*", b"[1-99999]", b"[1][2]"),
    *(b"=", b":", b",", b"|", b"@", b" ", b"\t", b'"', b"'", b"\\", b"-", b"/", b"#", b";", b"(", b")", b"<", b">"),
)  # fmt: skip
REPEATS = (2, 3, 16, 256, 4096, 65536)


def mutate(data: bytes, pool: Sequence[bytes], dice: random.Random, max_bytes: int) -> bytes:
    """Return ``data`` changed in a few places; ``pool`` is what pieces are taken from."""
    max_bytes = min(max_bytes, dice.choice((512, 2048, 2048, 8192, max_bytes)))
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        _change(changed, pool, dice, max_bytes)
    return bytes(changed[:max_bytes])


def _change(data: bytearray, pool: Sequence[bytes], dice: random.Random, max_bytes: int) -> None:
    start = dice.randrange(len(data) + 1)
    end = min(len(data), start + dice.choice((1, 1, 2, 4, 8, 32, 256)))
    match dice.randrange(9):
        case 0:
            data[start:end] = b""
        case 1:
            data[start:start] = dice.choice(WORDS)
        case 2:
            data[start:end] = dice.choice(WORDS)
        case 3 if data:
            data[min(start, len(data) - 1)] ^= 1 << dice.randrange(8)
        case 4:
            times = min(dice.choice(REPEATS), max_bytes // max(1, end - start))
            data[start:end] = bytes(data[start:end]) * times
        case 5:
            _swap_lines(data, dice)
        case 6 if pool:
            other = dice.choice(pool)
            at = dice.randrange(len(other) + 1)
            data[start:end] = other[at : at + dice.choice((4, 32, 512))]
        case 7 if pool:
            _change_line(data, dice.choice(pool), dice)
        case _:
            data[start:start] = dice.randbytes(dice.choice((1, 2, 4, 8)))


def _swap_lines(data: bytearray, dice: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    data[:] = b"\n".join(lines)


def _change_line(data: bytearray, other: bytes, dice: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    lines[dice.randrange(len(lines))] = dice.choice(other.split(b"\n"))
    data[:] = b"\n".join(lines)
