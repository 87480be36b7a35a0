"""What a target is, and the judgement of one try: which errors, time, memory, terminal codes and effects are wrong."""

import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distconsole.errors import ConsoleError

CORPUS = Path(__file__).parent / "corpus"
PRODUCT = ("/distconsole/", "/distconsole_agent/", "/distconsole_training/")
CPU_SECONDS = 5.0
"""Of this process, so that a busy machine is no finding."""
MAX_GROWTH_BYTES = 256 << 20
SHOWN_CONTROLS = "\n\t"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EFFECTS = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "os.remove",
    "os.rmdir", "os.rename", "os.mkdir", "os.chmod", "os.symlink", "shutil.rmtree",
}  # fmt: skip
BY_DESCRIPTOR = {"os.remove", "os.rmdir"}


@dataclass(frozen=True)
class Target:
    """One reader of foreign input.

    Attributes:
        run: Reads bytes, or what ``make`` makes; returns the texts that a person would see of it. Raises AssertionError
            where a further promise is broken.
        allowed: The errors by which it may refuse.
        make: Makes structured input, which JSON can carry, by dice; None of a target that takes bytes.
        slow: How many times fewer tries than usual ``make test`` makes.
        max_bytes: The longest input that is made for it.
    """

    name: str
    run: Callable[[Any], Iterable[str] | None]
    allowed: tuple[type[Exception], ...] = ()
    make: Callable[[random.Random], Any] | None = None
    slow: int = 1
    max_bytes: int = 64 * 1024

    def cases(self) -> list[Path]:
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())

    def read_case(self, path: Path) -> Any:
        return path.read_bytes() if self.make is None else json.loads(path.read_bytes())

    def write_case(self, folder: Path, data: Any) -> Path:
        """Keep an input in a file that ``read_case`` reads."""
        content = data if isinstance(data, bytes) else json.dumps(data).encode("ascii")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(content).hexdigest()[:12]
        path.write_bytes(content)
        return path


@dataclass(frozen=True)
class Failure:
    """A broken promise; two with one ``place`` are one defect."""

    place: str
    text: str


class WrongError(BaseException):
    """Not an Exception, so that no ``except`` of the product takes it."""


def judge(target: Target, data: Any) -> Failure | None:
    """Try one input, and return which promise it breaks."""
    before = _memory_bytes()
    try:
        with _bounded(), _without_effects():
            shown = list(target.run(data) or ())
    except target.allowed as error:
        shown = [str(error), error.hint] if isinstance(error, ConsoleError) else []
    except Exception as error:  # noqa: BLE001 - what is raised is what is judged
        return _failure(error)
    except WrongError as error:
        return _failure(error)
    grown = _memory_bytes() - before
    if grown > MAX_GROWTH_BYTES:
        return Failure("memory", f"{grown >> 20} MiB more than before")
    bad = next((text for text in shown if not is_plain(text)), None)
    return None if bad is None else Failure("terminal", f"would be shown: {bad[:500]!r}")


def is_plain(text: str) -> bool:
    """Whether a terminal shows a text and obeys nothing in it."""
    return text.isprintable() or not any(
        (unicodedata.category(each) == "Cc" and each not in SHOWN_CONTROLS)
        or "\u202a" <= each <= "\u202e"
        or "\u2066" <= each <= "\u2069"
        or "\ud800" <= each <= "\udfff"
        for each in text
    )


def _failure(error: BaseException) -> Failure:
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "fuzz/judging" not in each.filename
    ]
    ours = [each for each in frames if any(part in each.filename for part in PRODUCT)] or frames
    last = ours[-1] if ours else None
    place = (
        f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if last
        else type(error).__name__
    )
    return Failure(place, "".join(traceback.format_exception(error, limit=-12))[-6000:])


def _memory_bytes() -> int:
    """Return the most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


@contextmanager
def _bounded() -> Iterator[None]:
    def late(_number: int, _frame: object) -> None:
        raise WrongError(f"more than {CPU_SECONDS:g} s of a processor")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


_watching: list[str] = []
"""While an input is tried: the only folder below which something may be written."""
_hooked: list[bool] = []


@contextmanager
def _without_effects() -> Iterator[None]:
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)
    _watching.append(str(sandbox()))
    try:
        yield
    finally:
        _watching.clear()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(each in (mode or "") for each in "wax+") or (flags or 0) & WRITES
        if not writes or isinstance(path, int):
            return
    elif event in EFFECTS:
        path = arguments[0] if arguments else ""
        if event in BY_DESCRIPTOR and arguments[-1] != -1:
            return  # of a tree that is removed, by the descriptor of its folder
    else:
        return
    name = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
    if not name.startswith((_watching[0], "/dev/null")) and "/__pycache__" not in name:
        _watching.clear()
        raise WrongError(f"an effect: {event} {arguments!r}"[:500])


_sandbox: list[tempfile.TemporaryDirectory[str]] = []


def sandbox() -> Path:
    """Return the folder of this process into which targets write what is to be read."""
    if not _sandbox:
        memory = Path("/dev/shm")
        place = str(memory) if os.access(memory, os.W_OK) else None
        _sandbox.append(tempfile.TemporaryDirectory(prefix="dcfuzz-", dir=place))
    return Path(_sandbox[0].name)


def leave_sandbox() -> None:
    while _sandbox:
        _sandbox.pop().cleanup()


def file_of(data: bytes, name: str = "input") -> Path:
    """Return a file that holds ``data``."""
    path = sandbox() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
