"""``[notify]`` of the configuration: the ways of notices, and their events."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from distconsole.model.notices import NoticeKind
from distconsole.model.options import Kind, Option, TrustNeed

DEFAULT_KINDS = (NoticeKind.FINISH, NoticeKind.FAILURE, NoticeKind.STALL)
MAX_SERVICES = 8
DESKTOPS = ("auto", "osc9", "osc777", "both", "off")

NOTIFY_KEYS = {
    "on": Option(Kind.WORDS, TrustNeed.NONE),
    "bell": Option(Kind.FLAG, TrustNeed.NONE),
    "desktop": Option(Kind.TEXT, TrustNeed.NONE, choices=DESKTOPS),
    "command": Option(Kind.WORDS, TrustNeed.KEY),
    "shell": Option(Kind.TEXT, TrustNeed.KEY),
    "webhook": Option(Kind.TEXT, TrustNeed.KEY, secret=True),
    "webhook_env": Option(Kind.TEXT, TrustNeed.KEY),
    "allow_http": Option(Kind.FLAG, TrustNeed.KEY),
    "node": Option(Kind.FLAG, TrustNeed.KEY),
    "services": Option(Kind.WORDS, TrustNeed.KEY, secret=True),
    "services_env": Option(Kind.TEXT, TrustNeed.KEY),
    "timeout": Option(Kind.SECONDS, TrustNeed.NONE),
}

OWN_KEYS = (
    *("command", "shell", "webhook", "webhook_env", "allow_http", "node"),
    *("services", "services_env"),
)
"""Only in a person's own file: the writer of a project's could run programs here, or get notices of runs."""

_SERVICE = re.compile(r"[a-z][a-z0-9]*://\S+$")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """A way of notices.

    Attributes:
        bell: None: on the screen only.
        desktop: One of ``DESKTOPS``; None: ``auto`` on the screen, off elsewhere.
        command: A program and its words, which no shell reads.
        webhook: An address to post to; not shown.
        node: Whether a run's first node posts to it in place of the console; None: if no console stays.
        services: Addresses as apprise has them; not shown.
        timeout_seconds: A command, and all tries of a webhook, take no longer.
    """

    kinds: frozenset[NoticeKind] = frozenset(DEFAULT_KINDS)
    bell: bool | None = None
    desktop: str | None = None
    command: tuple[str, ...] = ()
    webhook: str = ""
    node: bool | None = None
    services: tuple[str, ...] = ()
    timeout_seconds: float = 10.0

    def __repr__(self) -> str:
        """Leave the secrets out: a command's words may have some, too."""
        return "NotifySettings(…)"


NOBODY = NotifySettings()


def notify_settings(values: Mapping[str, Any]) -> NotifySettings:
    """Return the settings of ``[notify]``; raises ValueError(key, the error)."""
    if not values:
        return NOBODY
    command = _command(values)
    return NotifySettings(
        kinds=_kinds(values.get("on")),
        bell=values.get("bell"),
        desktop=values.get("desktop"),
        command=command,
        webhook=_webhook(values),
        node=values.get("node"),
        services=_services(values),
        timeout_seconds=values.get("timeout", NOBODY.timeout_seconds),
    )


def _kinds(words: tuple[str, ...] | None) -> frozenset[NoticeKind]:
    if words is None:
        return NOBODY.kinds
    known = [kind.value for kind in NoticeKind if kind is not NoticeKind.TEST]
    for word in words:
        if word not in known:
            raise ValueError("on", f"'on' has '{word}', which is none of {', '.join(known)}")
    return frozenset(NoticeKind(word) for word in words)


def _command(values: Mapping[str, Any]) -> tuple[str, ...]:
    command: tuple[str, ...] = values.get("command", ())
    shell = values.get("shell")
    if command and shell:
        raise ValueError("shell", "'command' and 'shell' are two ways to say the same: keep one")
    if shell:
        return ("/bin/sh", "-c", shell)
    if len(command) != 1:
        return command
    try:
        return tuple(shlex.split(command[0]))
    except ValueError as error:
        raise ValueError("command", f"'command' cannot be split into words: {error}") from None


def _webhook(values: Mapping[str, Any]) -> str:
    name, address = values.get("webhook_env"), values.get("webhook", "")
    key = "webhook"
    if name:
        key, address = "webhook_env", os.environ.get(name, "")
        if not address:
            return ""  # where the secret is not given there is nobody to tell
    if address and not _may_post(address, allow_http=values.get("allow_http", False)):
        raise ValueError(
            key,
            f"'{key}' must be an https:// address; http:// only to this machine, or with "
            "allow_http = true",
        )
    return str(address)


def _services(values: Mapping[str, Any]) -> tuple[str, ...]:
    name, services = values.get("services_env"), values.get("services", ())
    key = "services_env" if name else "services"
    if name:
        services = tuple(os.environ.get(name, "").split())
    if len(services) > MAX_SERVICES:
        raise ValueError(key, f"'{key}' has more than {MAX_SERVICES} addresses")
    if not all(_SERVICE.match(each) for each in services):
        raise ValueError(key, f"'{key}' must be addresses of apprise, such as slack://…")
    return tuple(services)


def _may_post(address: str, *, allow_http: bool) -> bool:
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if not host or not address.isprintable() or not address.isascii() or " " in address:
        return False
    here = host == "localhost"
    with suppress(ValueError):
        here |= ipaddress.ip_address(host).is_loopback
    return parts.scheme == "https" or (parts.scheme == "http" and (allow_http or here))
