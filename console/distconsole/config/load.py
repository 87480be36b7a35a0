"""``distconsole.toml`` to a ``Config``; a mistake is an error with file, line and key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distconsole.config import schema
from distconsole.config.notify import NOTIFY_KEYS, OWN_KEYS, notify_settings
from distconsole.config.paths import expand_home, project_config_files, user_config_file
from distconsole.config.ranges import RangeError, expand
from distconsole.config.shortcuts import Alias, KeySetting
from distconsole.config.spelling import suggest
from distconsole.config.trust import (
    command_for,
    digest,
    is_trusted,
    keys_to_trust,
    trust,
    was_trusted,
    why_foreign,
    without,
)
from distconsole.config.values import convert, line_of
from distconsole.errors import ConfigError, UntrustedError
from distconsole.model.expectation import NOTHING_EXPECTED, CollectiveExpectation, Expectation
from distconsole.model.names import join_some
from distconsole.model.options import Kind, Option, TrustNeed

EXPECT, NOTIFY = "expect", "notify"
PACKAGES, COLLECTIVES = "packages", "collectives"
MAX_SHOWN = 8
TOML = 'such as: cluster = "lab"; texts need quotes, true and false none, and tables begin with [name]'
NAMED = 'such as: [clusters.lab] with hosts = ["gpu[01-04]"], and cluster = "lab" at the top'
_SETTING_NAMES = tuple(schema.HOST_KEYS)


def load_config(start: Path | None = None, *, refuse: bool = True) -> schema.Config:
    """Return the project's configuration over the user's.

    Args:
        refuse: Whether keys that need trust and have none are an error, or left out.

    Raises ConfigError if a file cannot be read or understood, UntrustedError if the project's file can have
    something executed, and nobody trusted it.
    """
    user = user_config_file()
    config, passed = schema.Config(), []
    try:
        start, has_own = (start or Path.cwd()).resolve(), user.is_file()
    except OSError as error:
        where = error.filename or "the folder that you are in"
        cure = f"see who may: ls -ld {user.parent}" if error.filename else "cd to another"
        raise ConfigError(f"{where}: {error.strerror}", cure) from None
    for path in project_config_files(start):
        if path == user.resolve():
            break
        foreign = why_foreign(path)
        found = _read_project(path, foreign=bool(foreign), refuse=refuse)
        if found is not None:
            config = found
            break
        way_out = f"to take it as it is: {command_for(path)}"
        passed.append(f"{path} is not read: {foreign}; {way_out}")
    if has_own:
        config = config.over(read_config(user))
    return replace(config, passed=tuple(passed)) if passed else config


def project_file(start: Path) -> Path | None:
    """Return the project's file that is read for ``start``, or would be if it was trusted."""
    user = user_config_file().resolve()
    return next((path for path in project_config_files(start.resolve()) if path != user), None)


def trust_as_it_is(path: Path, place: Path | None = None) -> str:
    """Trust a file as it is now, and return its keys that can have something executed.

    Args:
        place: Where it will stand, in the same folder; None if it stands there already.

    Raises ConfigError if it cannot be read or understood, or that it is trusted cannot be kept.
    """
    reader = _Reader(path)
    reader.config()
    trust(place or path, reader.digest)
    return reader.names_of_keys()


def needs_no_trust(path: Path) -> bool:
    """Whether a file has or needs no trust, as one that is missing; raises ConfigError if unreadable."""
    if not path.exists():
        return True
    reader = _Reader(path)
    return is_trusted(path, reader.digest) or not (why_foreign(path) or reader.keys)


def _read_project(path: Path, *, foreign: bool, refuse: bool) -> schema.Config | None:
    """Return the content of a project's file, None if a ``foreign`` one is not taken; raises UntrustedError."""
    was = was_trusted(path)
    if foreign and not was:
        return None
    reader = _Reader(path)
    agreed = was and is_trusted(path, reader.digest)
    if foreign and not agreed:
        return None
    whole = reader.config()
    if agreed or not reader.keys:
        return whole
    if not refuse:
        reader.table = without(reader.table, reader.keys)
        return reader.config()
    state = "was changed since it was trusted" if was else "is not trusted"
    raise UntrustedError(
        f"{path} {state}, and can have something executed: {reader.names_of_keys()}",
        f"look at it; if you trust it: {command_for(path)}",
    )


def read_config(path: Path) -> schema.Config:
    return _Reader(path).config()


def read_text(path: Path) -> str:
    """Return the text of a file of ours; raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8", "save it with that encoding") from None


class _Reader:
    """A file, its tables, and its keys that need trust; raises ConfigError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = read_text(path)
        try:
            self.table: dict[str, Any] = tomllib.loads(self.text)
        except RecursionError:
            raise ConfigError(f"{path}: nested deeper than a configuration is") from None
        except ValueError as error:  # also of a number with thousands of digits
            twice = str(error).startswith("Cannot")
            cure = "a key or a table may stand there once" if twice else TOML
            raise ConfigError(f"{path}: not TOML: {error}", cure) from None
        self.keys = [key for key, _ in keys_to_trust(self.table)]

    @property
    def digest(self) -> str:
        return digest(self.path, self.text, self.table)

    def names_of_keys(self) -> str:
        """Return them as a person finds them: ``setup (line 3), run.env (line 8)``."""
        shown = [
            f"{'.'.join(key)} (line {line_of(self.text, key[:-1], key[-1])})" for key in self.keys
        ]
        return join_some(shown, MAX_SHOWN)

    def config(self) -> schema.Config:
        table = self.table
        tables = ("hosts", "clusters", EXPECT, NOTIFY, "keys", "aliases", *schema.VERB_KEYS)
        known = {**schema.TOP_KEYS, **dict.fromkeys(tables)}
        top: dict[str, Any] = {}
        for name, value in table.items():
            canonical = self._known((), name, known)
            key = schema.TOP_KEYS.get(canonical)
            if key is not None and not _is_verb(canonical, value):
                top[canonical] = self._value((), name, value, key)
            elif not isinstance(value, dict):
                cure = NAMED if name == "hosts" else ""
                raise self._error((), name, f"'{name}' must be a table: [{name}]", cure)
        hosts, host_expect = self._hosts(table.get("hosts", {}))
        return schema.Config(
            cluster=top.get("cluster"),
            ssh_config=top.get("ssh_config"),
            theme=top.get("theme"),
            shared=_settings(top),
            hosts=hosts,
            clusters={
                name: self._cluster(name, value)
                for name, value in table.get("clusters", {}).items()
            },
            verbs={
                verb: self._verb(verb, table[verb], keys)
                for verb, keys in schema.VERB_KEYS.items()
                if verb in table and (verb not in schema.TOP_KEYS or _is_verb(verb, table[verb]))
            },
            files=(self.path,),
            startup=top.get("startup"),
            keys=tuple(self._key_settings(table.get("keys", {}))),
            aliases=self._aliases(table.get("aliases", {})),
            expect=self._expect((EXPECT,), table.get(EXPECT, {})),
            host_expect=host_expect,
            notify=self._notify(table.get(NOTIFY, {})),
        )

    def _notify(self, value: object) -> dict[str, Any]:
        if value == {}:
            return {}
        values = self._table((NOTIFY,), value, NOTIFY_KEYS)
        user = user_config_file()
        for name in OWN_KEYS:
            if name in values and self.path.resolve() != user.resolve():
                message = f"'{name}' of [{NOTIFY}] is not read from a project's file"
                raise self._error((NOTIFY,), name, message, f"put it into {user}")
        try:
            notify_settings(values)
        except ValueError as error:
            raise self._error((NOTIFY,), *error.args) from None
        return values

    def _key_settings(self, table: Mapping[str, Any]) -> Iterator[KeySetting]:
        for name, value in table.items():
            if isinstance(value, dict) and "line" not in value:
                for key, inner in value.items():
                    yield self._key(("keys", name), key, inner, name)
            else:
                yield self._key(("keys",), name, value, "")

    def _key(self, where: tuple[str, ...], key: str, value: Any, view: str) -> KeySetting:
        if isinstance(value, dict):
            found = self._table((*where, key), value, schema.KEY_KEYS)
        else:
            found = {"line": self._value(where, key, value, schema.KEY_KEYS["line"])}
        return KeySetting(key, **found, view=view, place=self._place(where, key))

    def _aliases(self, table: Mapping[str, Any]) -> dict[str, Alias]:
        where, option = ("aliases",), Option(Kind.LINE, TrustNeed.KEY)
        return {
            name: Alias(name, self._value(where, name, value, option), self._place(where, name))
            for name, value in table.items()
        }

    def _hosts(
        self, table: Mapping[str, Any]
    ) -> tuple[dict[str, schema.HostSettings], dict[str, Expectation]]:
        hosts: dict[str, schema.HostSettings] = {}
        expected: dict[str, Expectation] = {}
        for name, value in table.items():
            settings = _settings(self._table(("hosts", name), value, schema.HOST_KEYS, EXPECT))
            own = self._expect(("hosts", name, EXPECT), value.get(EXPECT, {}))
            try:
                names = expand(name)
            except RangeError as error:
                raise self._error(("hosts",), name, str(error)) from None
            for each in names:
                hosts[each] = settings.over(hosts.get(each, schema.HostSettings()))
                if EXPECT in value:
                    expected[each] = own.over(expected.get(each, NOTHING_EXPECTED))
        return hosts, expected

    def _expect(self, where: tuple[str, ...], value: Any) -> Expectation:
        values = self._table(where, value, schema.EXPECT_KEYS, PACKAGES, COLLECTIVES)
        packages, listed = value.get(PACKAGES, {}), value.get(COLLECTIVES, [])
        if not isinstance(packages, dict):
            raise self._error(where, PACKAGES, f"'{PACKAGES}' must be a table")
        specifiers = {
            name: self._value((*where, PACKAGES), name, each, schema.PACKAGE_KEY)
            for name, each in packages.items()
        }
        listed = listed if isinstance(listed, list) else [listed]
        collectives = tuple(self._collective(where, each) for each in listed if each)
        return Expectation(**values, packages=specifiers, collectives=collectives)

    def _collective(self, where: tuple[str, ...], value: object) -> CollectiveExpectation:
        inner = (*where, COLLECTIVES)
        values = self._table(inner, value, schema.COLLECTIVE_KEYS)
        if "op" not in values or not {"busbw_gbs", "time_us"} & set(values):
            message = "each needs 'op', and 'busbw_gbs' or 'time_us'"
            raise self._error(where, COLLECTIVES, f"[[{'.'.join(inner)}]]: {message}")
        if "bytes" in values:
            values["bytes"] = int(values["bytes"])
        return CollectiveExpectation(**values)

    def _cluster(self, name: str, value: Any) -> schema.ClusterSettings:
        where = ("clusters", name)
        values = self._table(where, value, schema.CLUSTER_KEYS, EXPECT)
        if ("hosts" in values) == ("hostfile" in values):
            message = f"cluster '{name}' needs one of 'hosts' and 'hostfile'"
            cure = "leave one out" if "hosts" in values else 'such as: hosts = ["gpu[01-08]"]'
            raise self._error(("clusters",), name, message, cure)
        return schema.ClusterSettings(
            hosts=values.get("hosts", ()),
            hostfile=values.get("hostfile"),
            ssh_config=values.get("ssh_config"),
            shared=_settings(values),
            expect=self._expect((*where, EXPECT), value.get(EXPECT, {})),
        )

    def _verb(self, verb: str, value: object, keys: Mapping[str, Option]) -> dict[str, Any]:
        values = self._table((verb,), value, keys)
        return {
            keys[name].parameter or name: str(value) if isinstance(value, Path) else value
            for name, value in values.items()
        }

    def _table(
        self, where: tuple[str, ...], value: object, keys: Mapping[str, Option], *tables: str
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where[:-1], where[-1], f"'{where[-1]}' must be a table")
        values = {}
        for name, inner in value.items():
            if name not in tables:
                canonical = self._known(where, name, {**keys, **dict.fromkeys(tables)})
                values[canonical] = self._value(where, name, inner, keys[canonical])
        return values

    def _known(self, where: tuple[str, ...], name: str, keys: Mapping[str, Any]) -> str:
        canonical = name.replace("-", "_")
        if canonical in keys:
            return canonical
        table = f" in [{'.'.join(where)}]" if where else ""
        hint = suggest(canonical, keys, f"known are: {', '.join(sorted(keys))}", quote="'")
        tables = [
            f"[{verb}]" for verb, of in schema.VERB_KEYS.items() if not where and canonical in of
        ]
        hint = f"it stands below {' or '.join(tables[:3])}" if tables else hint
        hint = NAMED if name in ("hosts", "hostfile", "cluster") and where else hint
        raise self._error(where, name, f"unknown key '{name}'{table}", hint)

    def _value(self, where: tuple[str, ...], name: str, value: Any, key: Option) -> Any:
        found = convert(value, key.kind)
        is_choice = key.choices and key.kind is Kind.TEXT
        if found is None or (is_choice and found not in key.choices):
            wanted = f"one of {', '.join(key.choices)}" if is_choice else key.kind.value
            otherwise = NAMED if name == "cluster" else ""
            hint = suggest(str(value), key.choices, otherwise, quote="'")
            shown = "what it is" if key.secret else repr(value)
            raise self._error(where, name, f"'{name}' must be {wanted}, not {shown}", hint)
        if key.kind in (Kind.FILE, Kind.PATH):
            return self.path.parent / expand_home(found)
        return found

    def _error(
        self, where: tuple[str, ...], name: str, message: str, hint: str = ""
    ) -> ConfigError:
        return ConfigError(f"{self._place(where, name)}: {message}", hint)

    def _place(self, where: tuple[str, ...], name: str) -> str:
        line = line_of(self.text, where, name)
        return f"{self.path}:{line}" if line else str(self.path)


def _is_verb(name: str, value: object) -> bool:
    return name in schema.VERB_KEYS and isinstance(value, dict)


def _settings(values: Mapping[str, Any]) -> schema.HostSettings:
    return schema.HostSettings(**{name: values[name] for name in _SETTING_NAMES if name in values})
