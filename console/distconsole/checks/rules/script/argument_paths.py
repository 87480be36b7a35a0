"""How a path among the script's arguments looks on each host: whether all ranks will see the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from distconsole.checks.facts.script import Found
from distconsole.checks.rules.system.folders import NUMBERED
from distconsole.checks.rules.wording import dissent, list_some, name_hosts, size


class Trouble(NamedTuple):
    """What is wrong with a path, and where."""

    summary: str
    hosts: tuple[str, ...]
    seen: str
    hint: str


def argument_trouble(what: str, found: Mapping[str, Found], *, output: bool) -> Trouble | None:
    """Return the worst that is wrong with ``what``; None if it is well everywhere."""
    late = tuple(name for name, each in found.items() if each.late)
    if late:
        return Trouble(
            f"{what} does not answer on {name_hosts(late)}",
            late,
            _list_paths(found),
            "is its server up? mount | grep of that folder; umount -f -l",
        )
    return _unwritable(what, found) if output else _unreadable(what, found) or _unlike(what, found)


def _unwritable(what: str, found: Mapping[str, Found]) -> Trouble | None:
    hosts = tuple(name for name, each in found.items() if not each.writable)
    if not hosts:
        return None
    place = next(found[name].above or found[name].real for name in hosts)
    return Trouble(
        f"{what} cannot be written to on {name_hosts(hosts)}",
        hosts,
        _list_paths({name: found[name] for name in hosts}),
        f"on {name_hosts(hosts)}: ls -ld {place}; make it, or take it over: sudo chown $USER {place}",
    )


def _unreadable(what: str, found: Mapping[str, Found]) -> Trouble | None:
    missing = tuple(name for name, each in found.items() if each.error)
    if missing:
        on = "no host" if len(missing) == len(found) else name_hosts(missing)
        return Trouble(
            f"{what} is on no host"
            if len(missing) == len(found)
            else f"{what} is not there on {on}",
            missing,
            _list_paths(found),
            f"on {name_hosts(missing)}: findmnt; sudo mount -a; or copy it there by rsync -a",
        )
    hosts = tuple(name for name, each in found.items() if not each.readable)
    if hosts:
        return Trouble(
            f"{what} cannot be read on {name_hosts(hosts)}",
            hosts,
            _list_paths({name: found[name] for name in hosts}),
            f"on {name_hosts(hosts)}: ls -ld {found[hosts[0]].real}; chmod or chown",
        )
    return None


def _unlike(what: str, found: Mapping[str, Found]) -> Trouble | None:
    """Another kind, source, size or number of entries than on the other hosts."""
    shared = {name: bool(each.mount and each.mount.network) for name, each in found.items()}
    aspects: list[tuple[str, dict[str, Hashable]]] = [
        ("is of another kind", {name: each.kind for name, each in found.items()}),
        ("comes from elsewhere", dict(shared)),
    ]
    if all(shared.values()):
        numbered = all(
            each.mount is not None and each.mount.kind in NUMBERED for each in found.values()
        )
        inodes = {name: each.inode if numbered else 0 for name, each in found.items()}
        aspects.append(("is another folder", dict(inodes)))
    files = {name: each.size for name, each in found.items() if each.kind == "file"}
    counts = {name: each.entries for name, each in found.items() if each.entries is not None}
    aspects += [("has another size", dict(files)), ("has other contents", dict(counts))]
    for verb, values in aspects:
        split = dissent(values)
        if split is not None:
            return Trouble(
                f"{what} {verb} on {name_hosts(split.minority)}"
                + ("" if split.majority is not None else ": the hosts do not agree"),
                split.minority,
                _list_paths(found),
                "compare them: findmnt -T PATH; find PATH | wc -l; bring one to all by rsync -a",
            )
    return None


def _list_paths(found: Mapping[str, Found]) -> str:
    return list_some([f"{name}: {_format_path(each)}" for name, each in found.items()])


def _format_path(found: Found) -> str:
    if found.error:
        above = (
            f"; {found.above} is{'' if found.writable else ' not'} writable" if found.above else ""
        )
        return f"{found.error}{above}"
    parts = [found.kind]
    if found.kind == "file":
        parts.append(size(found.size))
    if found.entries is not None:
        parts.append(f"{found.entries} entries")
    if found.mount is not None:
        parts.append(f"{found.mount.kind} {found.mount.source} at {found.mount.point}")
    return ", ".join([*parts, *([] if found.readable else ["not readable"])])
