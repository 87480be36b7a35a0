"""ssh_config(5) as OpenSSH reads it (readconf.c), for the keywords that decide how a host is reached.

``Match`` knows all, final, host, originalhost, user, localuser, tagged and exec. Canonical names and
further criteria are left to ssh: ``SshOptions.login`` has them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import getpass
import glob
import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from distconsole.config.paths import expand_home
from distconsole.errors import ConfigError
from distconsole.model.cluster import Host
from distconsole.model.names import is_whole, may_be_host, may_be_user
from distconsole.model.time_text import span_seconds

ONE_KEY = "have one key offered: IdentityFile and IdentitiesOnly yes, in ssh_config"
DEFAULT_CONNECT_SECONDS = 10.0
MAX_INCLUDE_DEPTH = 16
MATCH_EXEC_SECONDS = 10.0
DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ed25519")

_LISTED = {"identityfile", "certificatefile"}
_WHOLE_LINES = {"userknownhostsfile", "globalknownhostsfile", "setenv"}
_KNOWN = _LISTED | _WHOLE_LINES | {"sendenv"}
_KNOWN |= {"hostname", "user", "port", "identitiesonly", "identityagent", "proxyjump"}
_KNOWN |= {"proxycommand", "hostkeyalias", "connecttimeout", "addressfamily", "bindaddress"}
_LOGIN = {
    *("gssapiauthentication", "hostbasedauthentication", "pkcs11provider", "securitykeyprovider"),
    *("pubkeyauthentication", "preferredauthentications", "canonicalizehostname"),
    *("proxyusefdpass", "knownhostscommand", "verifyhostkeydns", "bindinterface"),
    *("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes", "revokedhostkeys", "checkhostip"),
}
ALGORITHM_LISTS = {"ciphers", "macs", "kexalgorithms", "hostkeyalgorithms"}
"""Lists of a connection's algorithms that ssh_config may limit."""
_LOGIN |= ALGORITHM_LISTS
_KNOWN |= _LOGIN | {"controlpath", "tag"}
_LINE = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(.*)")
_CHARACTER = re.compile(r"""\\(['"\\ ])|(.)""", re.DOTALL)

WITH_VALUES = ("host", "originalhost", "user", "localuser", "exec")
UNKNOWN_CRITERION = "match"
"""The key of ``SshOptions.login`` for a criterion of Match that only ssh itself can judge."""


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How to reach one host; files are absolute, tokens expanded.

    Attributes:
        identity_files: Private keys to try, in order; named ones only if ``identities_given``.
        identity_agent: The agent's socket, or None for no agent.
        proxy_jump: Hosts to go through, nearest first, each ``[user@]host[:port]``.
        host_key_name: Its name in known_hosts, without a port, by HostKeyAlias.
        control_paths: Where a master of the user's own may listen; versions of ssh make ``%C`` in two ways.
        login: Settings of logins and host keys other than by keys, by keyword, all in lower case.
        environment: Variables for the server, by SendEnv and SetEnv; it takes those that its AcceptEnv names.
        no_known_hosts: The UserKnownHostsFile that keeps nothing (/dev/null); the default files replace it.
    """

    alias: str
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    identities_given: bool
    certificate_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None
    proxy_jump: tuple[str, ...]
    proxy_command: str | None
    user_known_hosts: tuple[str, ...]
    global_known_hosts: tuple[str, ...]
    host_key_name: str | None
    connect_seconds: float
    address_family: int
    bind_address: str | None
    control_paths: tuple[str, ...] = ()
    login: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    no_known_hosts: str = ""


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """The place of a line: for messages, and as the base of its includes."""

    file: Path
    base: Path
    line: int = 0


@dataclass(slots=True)
class _Pass:
    """One reading of all files for one host: the values obtained so far."""

    alias: str
    host: str  # which Host lines match: the alias, and in the final pass the host's own name
    final: bool = False
    wants_final: bool = False
    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)


class SshConfig:
    """The files, read once; ``lookup`` may be called from several threads.

    ``names`` are the words after ``Host`` in the files that were read, patterns too. A ``file`` is read
    alone, as ``ssh -F`` does; without one the user's is read, and then the system's.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        home: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.home = home if home is not None else Path.home()
        self.environ = dict(os.environ) if environ is None else environ
        self.local_user = getpass.getuser()
        self._texts: dict[Path, list[str]] = {}
        self.names: dict[str, None] = {}
        user_base = self.home / ".ssh"
        if file is not None:
            path = expand_home(file)
            if not path.is_file():
                raise ConfigError(f"{path}: no such file", "--ssh-config names an ssh_config(5)")
            self._files = [ConfigPlace(path, user_base)]
        else:
            self._files = [
                ConfigPlace(user_base / "config", user_base),
                ConfigPlace(Path("/etc/ssh/ssh_config"), Path("/etc/ssh")),
            ]

    def lookup(self, alias: str, user: str | None = None, port: int | None = None) -> SshOptions:
        """Return how to reach ``alias``; ``user`` and ``port`` win over the files, as in ``ssh -l -p``.

        Raises ConfigError if a file cannot be understood; names file and line.
        """
        reading = _Pass(alias, alias)
        if user is not None:
            reading.values["user"] = user
        if port is not None:
            reading.values["port"] = str(port)
        self._read_all(reading)
        if reading.wants_final:
            reading.final = True
            reading.host = self._hostname(reading).lower()
            reading.values["hostname"] = reading.host.replace("%", "%%")
            self._read_all(reading)
        return self._options(reading)

    def find(self, host: Host) -> SshOptions:
        return self.lookup(host.name, host.user, host.port)

    def says_how_to_log_in(self, host: Host) -> bool:
        """Return True if a line of the files is about logins other than by keys, for any host."""
        self.find(host)  # which reads them all
        words = {*_LOGIN, "controlpath"} - {"gssapiauthentication", *ALGORITHM_LISTS}
        lines = (line.lower() for text in self._texts.values() for line in text)
        return any("_sk" in line or any(word in line for word in words) for line in lines)

    def _read_all(self, reading: _Pass) -> None:
        for place in self._files:
            self._read(place, reading, active=True, depth=0)

    def _read(self, place: ConfigPlace, reading: _Pass, *, active: bool, depth: int) -> None:
        """Interpret one file; a file included from an inactive block is read and never applies."""
        if depth > MAX_INCLUDE_DEPTH:
            raise ConfigError(f"{place.file}: includes nest deeper than {MAX_INCLUDE_DEPTH}")
        applies = active
        for number, line in enumerate(self._lines(place.file), 1):
            here = ConfigPlace(place.file, place.base, number)
            split = _split_line(line, here)
            if split is None:
                continue
            keyword, rest = split
            if keyword == "host":
                patterns = _split_words(rest, here)
                self.names.update(dict.fromkeys(each for each in patterns if each.isprintable()))
                applies = active and matches_list(patterns, reading.host, any_case=False)
            elif keyword == "match":
                applies = self._match(_split_words(rest, here), reading, here) and active
            elif keyword == "include":
                for included in self._included(_split_words(rest, here), here):
                    self._read(included, reading, active=applies, depth=depth + 1)
            elif applies and keyword in _KNOWN:
                _obtain(keyword, rest, reading, here)

    def _lines(self, path: Path) -> list[str]:
        if path not in self._texts:
            try:
                text = path.read_text(encoding="utf-8", errors="surrogateescape")
            except (FileNotFoundError, IsADirectoryError):  # as ssh
                text = ""
            except OSError as error:
                raise ConfigError(f"{path}: {error.strerror}") from None
            self._texts[path] = text.splitlines()
        return self._texts[path]

    def _included(self, patterns: list[str], here: ConfigPlace) -> Iterator[ConfigPlace]:
        for pattern in patterns:
            expanded = self._path(pattern)
            full = str(here.base / expanded)  # an absolute one stays as it is
            for found in sorted(glob.glob(full)):  # noqa: PTH207 - an absolute pattern
                yield ConfigPlace(Path(found), here.base)

    def _match(self, words: list[str], reading: _Pass, here: ConfigPlace) -> bool:
        """Whether every criterion holds; all are looked at, as one may ask for a final pass."""
        holds = True
        while words:
            word, equals, given = words.pop(0).partition("=")
            word = word.lower()
            if equals and word.lstrip("!") in WITH_VALUES:  # host=a,b is "host a,b"
                words.insert(0, given)
            else:
                word += (equals + given).lower()
            wanted = not word.startswith("!")
            name = word.lstrip("!")
            if name == "all":
                continue
            if name in ("final", "canonical"):
                reading.wants_final |= name == "final"
                holds &= reading.final is wanted
                continue
            if not words:
                raise ConfigError(f"{here.file}:{here.line}: Match {name} needs a value")
            value = words.pop(0)  # also if an earlier criterion has failed
            holds = holds and self._criterion_holds(name, value, reading) is wanted
        return holds

    def _criterion_holds(self, name: str, value: str, reading: _Pass) -> bool:
        patterns = value.split(",")
        match name:
            case "host":
                return matches_list(patterns, self._hostname(reading))
            case "originalhost":
                return matches_list(patterns, reading.alias)
            case "user":
                user = reading.values.get("user", self.local_user)
                return matches_list(patterns, user, any_case=False)
            case "localuser":
                return matches_list(patterns, self.local_user, any_case=False)
            case "exec":
                return _exec_succeeds(_expand(value, self._tokens(reading)), self.environ)
            case "tagged":
                return matches_list(patterns, reading.values.get("tag", ""), any_case=False)
            case _:
                reading.values.setdefault(UNKNOWN_CRITERION, name)
                return False

    def _hostname(self, reading: _Pass) -> str:
        name = reading.values.get("hostname", reading.alias)
        return name.replace("%%", "\0").replace("%h", reading.alias).replace("\0", "%").lower()

    def _tokens(self, reading: _Pass) -> dict[str, str]:
        """Return the values of the tokens of files, and of commands that a shell reads.

        Raises ConfigError if a name has characters that a shell would act on, which OpenSSH refuses, too.
        """
        values = reading.values
        hostname, port = self._hostname(reading), values.get("port", "22")
        local = socket.gethostname()
        jump = values.get("proxyjump", "")
        for name in (reading.alias, hostname):
            if not may_be_host(name):
                raise ConfigError(f"'{name}' is not a host that can be reached by ssh")
        tokens = {
            "%%": "%",
            "%h": hostname,
            "%n": reading.alias,
            "%p": port,
            "%u": self.local_user,
            "%d": str(self.home),
            "%l": local,
            "%L": local.split(".")[0],
            "%i": str(os.getuid()),
            "%j": jump,
            "%k": values.get("hostkeyalias", reading.alias),
        }
        user = _expand(self._path(values.get("user", self.local_user)), tokens)
        if not may_be_user(user):
            raise ConfigError(f"'{user}' is not a user, for {reading.alias}")
        tokens["%r"] = user
        return {**tokens, "%C": _connection_hash(tokens, jump)}

    def _path(self, text: str, tokens: dict[str, str] | None = None) -> str:
        """Return a file name with ``~``, ``${NAME}`` and tokens replaced; raises ConfigError for a variable without a value."""
        if text == "~" or text.startswith("~/"):
            text = str(self.home) + text[1:]
        elif text.startswith("~"):
            text = os.path.expanduser(text)  # noqa: PTH111 - another user's home
        for name in re.findall(r"\$\{(\w+)\}", text):
            if tokens and name not in self.environ:
                raise ConfigError(f"ssh_config: {text}: {name} is not set", f"export {name}=…")
        text = re.sub(r"\$\{(\w+)\}", lambda found: self.environ.get(found[1], ""), text)
        return _expand(text, tokens) if tokens else text

    def _options(self, reading: _Pass) -> SshOptions:
        values, tokens = reading.values, self._tokens(reading)
        paths = partial(self._path, tokens=tokens)
        given = [text for text in reading.lists.get("identityfile", []) if text.lower() != "none"]
        identities = given or [f"{self.home}/.ssh/{name}" for name in DEFAULT_IDENTITIES]

        def files(keyword: str, usual: str) -> tuple[str, ...]:
            named = reading.lists.get(keyword, [usual, f"{usual}2"])
            return tuple(paths(text) for text in named if text.lower() != "none")

        known, no_known_hosts = files("userknownhostsfile", "~/.ssh/known_hosts"), ""
        if not any(map(_keeps_lines, known)):
            no_known_hosts = " ".join(known) or "none"
            known = tuple(paths(f"~/.ssh/known_hosts{end}") for end in ("", "2"))
        jump = values.get("proxyjump", "none")
        hops = tuple(_expand(hop.strip(), tokens) for hop in jump.split(","))
        command = values.get("proxycommand", "none")
        seconds = span_seconds(values.get("connecttimeout", "").lower())
        return SshOptions(
            alias=reading.alias,
            hostname=self._hostname(reading),
            user=tokens["%r"],
            port=int(tokens["%p"]),
            identity_files=tuple(dict.fromkeys(paths(text) for text in identities)),
            identities_given=bool(given),
            certificate_files=tuple(paths(t) for t in reading.lists.get("certificatefile", [])),
            identities_only=values.get("identitiesonly", "no").lower() in ("yes", "true"),
            identity_agent=self._agent(values.get("identityagent"), paths),
            proxy_jump=() if jump.lower() == "none" else hops,
            proxy_command=None if command.lower() == "none" else _expand(command, tokens),
            user_known_hosts=tuple(filter(_keeps_lines, known)),
            global_known_hosts=files("globalknownhostsfile", "/etc/ssh/ssh_known_hosts"),
            host_key_name=values.get("hostkeyalias"),
            connect_seconds=seconds or DEFAULT_CONNECT_SECONDS,
            address_family={"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
                values.get("addressfamily", "any").lower(), socket.AF_UNSPEC
            ),
            bind_address=values.get("bindaddress"),
            control_paths=self._control_paths(values.get("controlpath", "none"), tokens),
            login={
                name: values[name].lower()
                for name in (*_LOGIN, UNKNOWN_CRITERION)
                if name in values
            },
            environment=self._environment(reading),
            no_known_hosts=no_known_hosts,
        )

    def _environment(self, reading: _Pass) -> dict[str, str]:
        patterns = reading.lists.get("sendenv", [])
        sent = {
            name: value
            for name, value in self.environ.items()
            if matches_list(patterns, name, any_case=False)
        }
        set_here = (each.partition("=") for each in reading.lists.get("setenv", []))
        return sent | {name: value for name, equals, value in set_here if equals}

    def _control_paths(self, text: str, tokens: dict[str, str]) -> tuple[str, ...]:
        if text.lower() == "none":
            return ()
        without_jump = _connection_hash(tokens, jump="")
        both = (tokens, {**tokens, "%C": without_jump})
        return tuple(dict.fromkeys(self._path(text, each) for each in both))

    def _agent(self, value: str | None, paths: Callable[[str], str]) -> str | None:
        own = self.environ.get("SSH_AUTH_SOCK") or None
        if value is None or value == "SSH_AUTH_SOCK":
            return own
        if value.lower() == "none":
            return None
        of_variable = value.startswith("$") and not value.startswith("${")
        return self.environ.get(value[1:]) if of_variable else paths(value)


def _split_line(line: str, here: ConfigPlace) -> tuple[str, str] | None:
    """Return keyword (lower case) and the rest of a line; None for blanks and comments."""
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return None
    found = _LINE.fullmatch(stripped)
    if found is None or "\0" in stripped:
        raise ConfigError(f"{here.file}:{here.line}: not a line of an ssh_config: {stripped[:80]}")
    return found[1].lower(), found[2].strip()


def _split_words(text: str, here: ConfigPlace) -> list[str]:
    """Split by blanks that no quotes keep together; a backslash protects a blank, a quote and itself, ``#`` begins a comment."""
    words: list[str] = []
    word, quote = None, ""
    for found in _CHARACTER.finditer(text):
        escaped, plain = found.groups()
        if escaped:
            word = (word or "") + (found[0] if quote and escaped == " " else escaped)
        elif quote and plain == quote:
            quote = ""
        elif quote or not (plain.isspace() or plain in "#\"'"):
            word = (word or "") + plain
        elif plain.isspace():
            words += [] if word is None else [word]
            word = None
        elif plain != "#":
            word, quote = word or "", plain
        elif word is None:
            return words
        else:
            word += plain
    if quote:
        raise ConfigError(f"{here.file}:{here.line}: a quote is not closed")
    return words if word is None else [*words, word]


def _keeps_lines(path: str) -> bool:
    """Return whether keys can be added: /dev/fd/N, as of a shell's ``<(…)``, is another file in each process."""
    file, of_process = Path(path), path.startswith(("/dev/fd/", "/dev/std", "/proc/"))
    return not of_process and (file.is_file() or not file.exists())


def _connection_hash(tokens: dict[str, str], jump: str) -> str:
    text = "".join(tokens[name] for name in ("%l", "%h", "%p", "%r")) + jump
    return hashlib.sha1(os.fsencode(text)).hexdigest()  # noqa: S324 - as ssh has it


def users_shell(environ: Mapping[str, str]) -> str:
    return environ.get("SHELL") or "/bin/sh"


def _exec_succeeds(command: str, environ: Mapping[str, str]) -> bool:
    shell, null = [users_shell(environ), "-c", command], subprocess.DEVNULL
    try:
        return not subprocess.call(
            shell, stdin=null, stdout=null, stderr=null, timeout=MATCH_EXEC_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError):
        return False


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%.", lambda found: tokens.get(found[0], found[0]), text)


def _obtain(keyword: str, rest: str, reading: _Pass, here: ConfigPlace) -> None:
    """Note a value; the first one counts, except that identities add up."""
    if keyword == "proxycommand":
        reading.values.setdefault(keyword, rest)
        return
    words = _split_words(rest, here)
    if not words:
        raise ConfigError(f"{here.file}:{here.line}: {keyword} needs a value")
    if keyword == "port":
        with contextlib.suppress(OSError):  # a service of /etc/services
            words[0] = str(socket.getservbyname(words[0], "tcp"))
        if not (is_whole(words[0]) and 0 < int(words[0]) < 65536):
            raise ConfigError(f"{here.file}:{here.line}: {words[0]!r} is not a port")
    if keyword in _LISTED:
        known = reading.lists.setdefault(keyword, [])
        known.extend(word for word in words[:1] if word not in known)
    elif keyword in _WHOLE_LINES:
        reading.lists.setdefault(keyword, words)
    elif keyword == "sendenv":
        _add_patterns(reading.lists.setdefault(keyword, []), words)
    elif keyword == "proxyjump" and "proxycommand" in reading.values:
        return
    else:
        reading.values.setdefault(keyword, words[0])
    if keyword == "proxyjump" and words[0].lower() != "none":
        # The first of the two wins, by ssh_config(5).
        reading.values.setdefault("proxycommand", "none")


def _add_patterns(known: list[str], words: Sequence[str]) -> None:
    """Add names of variables to send; one behind ``-`` takes those away that it matches."""
    for word in words:
        if word.startswith("-"):
            known[:] = [each for each in known if not fnmatch.fnmatchcase(each, word[1:])]
        elif word not in known:
            known.append(word)


def matches_list(patterns: Sequence[str], name: str, *, any_case: bool = True) -> bool:
    """Return True if a pattern matches and no negated one does; ``*`` and ``?`` only, so ``[host]:port`` is itself."""
    matched = False
    for pattern in patterns:
        literal = pattern.lstrip("!").replace("[", "[[]")
        pair = (name.lower(), literal.lower()) if any_case else (name, literal)
        if fnmatch.fnmatchcase(*pair):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched
