"""How a field of a request or of the configuration is given: its option, and its key in ``distconsole.toml``.

A field is made by ``plain``, ``needs_trust``, ``needs_trusted_file`` or ``act``, so that no key is added
without a decision about trust.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum, StrEnum
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

REQUIRED: Any = MISSING
"""In place of a default."""


class Kind(Enum):
    """Kind of a value, in the words of messages; any other value in a file is a text."""

    TEXT = "a text"
    FILE = "a file name"
    PATH = "the name of a file or folder"
    FOLDER = "the name of a folder"
    FLAG = "true or false"
    COUNT = "a whole number from 0"
    POSITIVE = "a whole number from 1"
    USER = "a user name"
    PORT = "a port (1 to 65535)"
    SECONDS = "a number of seconds"
    WORDS = "a list of texts"
    GROUPS = "a list of groups of checks"
    HOST_LIST = "a list of hosts"
    SIZES = "a list of sizes"
    NPROC = "a whole number from 1, or 'gpu'"
    NNODES = "a whole number from 1, or 'MIN:MAX'"
    RANKS = "a rank, or ranks such as '0-3,8'"
    PAIRS = "a table of texts"
    VERSION = "a version such as '>=2.4' or '==2.13.*'"
    SIZE = "a size such as '8GiB', or a number of bytes"
    LIMIT = "a number, a size such as '64GiB', or 'unlimited'"
    NUMBER = "a number above 0"
    HOSTS = "hosts"
    CLUSTER = "the name of a cluster"
    THEME = "the name of a theme"
    PATTERN = "a regular expression"
    SINCE = "a time"
    MOMENT = "a moment of a run"
    CONDITION = "a condition"
    WAYS = "ways to be told"
    SERVICES = "services for results"
    LOOPBACK = "a port of this machine"
    LINE = "a line of the prompt, such as 'check --level full'"
    KEY_LINE = "a line of the prompt, such as 'check', or a table of line and label"
    """It may be empty."""


class TrustNeed(Enum):
    """Trust that a key needs in a project's file (``config.trust``)."""

    NONE = "none"
    KEY = "key"
    CONTENT = "content"
    """The content of the file that it names counts, too."""
    NO_KEY = "no key"
    """It is an act or a question, and no setting."""


class Heading(StrEnum):
    """Headings of options, in the help's order."""

    OPTIONS = "options"
    HOSTS = "hosts"
    RANKS = "ranks"
    CODE = "code"
    SLURM = "Slurm"
    RESTARTS = "end and restarts"
    OUTPUT = "output"
    CONSOLE = "console"


HEADINGS = {
    Heading.HOSTS: "hosts hostfile cluster ssh_config transport python setup container nnodes nic exclude",
    Heading.RANKS: "launcher nproc ranks env env_file pass_args watch verify_sync nccl_debug",
    Heading.CODE: "module workdir sync",
    Heading.SLURM: "slurm slurm_login",
    Heading.RESTARTS: "max_restarts grace_seconds lost_after_seconds",
    Heading.OUTPUT: "name detach dry_run json details junit emit_hostfile write_profile emit output "
    "format table follow listen export notify log_limit store_limit help version",
    Heading.CONSOLE: "theme startup headless",
}
"""By heading, the names of the fields that stand there in every request; the others are plain options."""


def heading_of(name: str) -> Heading:
    found = (each for each, names in HEADINGS.items() if name in names.split())
    return next(found, Heading.OPTIONS)


@dataclass(frozen=True, slots=True)
class Option:
    """One option and key.

    Attributes:
        choices: All values that it may have; for ``Kind.WORDS`` that each of them may.
        flags: As they are typed; empty for the field's name with dashes.
        metavar: How a value looks in the help; empty for that of its kind.
        secret: Whether no message may show the value.
        least, most: Of a number.
        parameter: The field's name.
        also: Names in other launchers for the same; no help names them.
    """

    kind: Kind
    trust: TrustNeed
    help: str = ""
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metavar: str = ""
    secret: bool = False
    least: float = 0
    most: int | None = None
    parameter: str = ""
    also: tuple[str, ...] = ()

    def flag(self, name: str) -> str:
        """Return the option as it is typed, of a field called ``name``."""
        long = (each for each in self.flags if each.startswith("--"))
        return next(long, f"--{name.removesuffix('_seconds').replace('_', '-')}").partition("/")[0]


def option(
    trust: TrustNeed,
    default: T,
    help_text: str = "",
    kind: Kind | Iterable[str] | None = None,
    *flags: str,
    **more: Any,
) -> T:
    """Return a field with its ``Option``; ``kind``: a kind, choices, or None for flags and enumerations."""
    if not isinstance(kind, Kind):
        choices = type(default) if kind is None and isinstance(default, StrEnum) else kind
        more["choices"] = tuple(choices or ())
        of_text = Kind.WORDS if isinstance(default, tuple) else Kind.TEXT
        kind = of_text if choices else Kind.FLAG
    metadata = {"option": Option(kind, trust, help_text, flags=flags, **more)}
    made: Any = field(default=default, metadata=metadata)
    return made  # type: ignore[no-any-return]


plain = partial(option, TrustNeed.NONE)
"""A field whose key may stand in a project's file without trust: it executes nothing."""
needs_trust = partial(option, TrustNeed.KEY)
"""A field whose key can have something executed, written over, or opened to others."""
needs_trusted_file = partial(option, TrustNeed.CONTENT)
"""A field whose key names a file that can have something executed."""
act = partial(option, TrustNeed.NO_KEY)
"""A field without a key: an act or a question, and no setting."""


def options_of(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass by the field's name, its own before those of its bases."""
    own = kind.__annotations__
    found = {
        each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata
    }
    return dict(sorted(found.items(), key=lambda item: item[0] not in own))


def keys_of(kind: type) -> dict[str, Option]:
    """Return the keys of a dataclass by their names in ``distconsole.toml``."""
    found = {}
    for name, each in options_of(kind).items():
        if each.trust is not TrustNeed.NO_KEY:
            key = each.flag(name).removeprefix("--").replace("-", "_")
            found[key] = replace(each, parameter=name)
    return found
