"""The operator's own names and keys in one session: read from files, and aliases added at the prompt."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from distconsole.config.schema import Config
from distconsole.config.shortcuts import Alias, keep_alias, read_aliases_file
from distconsole.errors import UsageError
from distconsole.grammar.aliases import check_aliases, expand_alias, trouble_with
from distconsole.grammar.secrets import mask_secrets
from distconsole.tui.prompt.keymap import Keymap, make_keymap
from distconsole.tui.prompt.keys import ALIASES, PROMPT_VERBS

KNOWN = (*PROMPT_VERBS, "help", "distconsole", *ALIASES)
DEFINED = re.compile(r"\s*([^\s=]+)\s*(?:=\s*|\s)(.*?)\s*", re.DOTALL)


class Shortcuts:
    """Aliases and keys; without ``kept``, a file, aliases are of this session only.

    Raises ConfigError naming file and line, if one of them is invalid.
    """

    def __init__(self, config: Config, kept: Path | None = None) -> None:
        self._kept = kept
        self._configured = config.aliases
        check_aliases(self._configured, KNOWN)
        self._own: dict[str, Alias] = {}
        self._seen = 0
        self.refresh()
        self.keymap: Keymap = make_keymap(config.keys, self.aliases)

    @property
    def aliases(self) -> Mapping[str, Alias]:
        return {**self._configured, **self._own}

    def refresh(self) -> None:
        """Read shortcuts that another console has kept, without invalid ones."""
        if self._kept is None:
            return
        with contextlib.suppress(OSError):
            seen = self._kept.stat().st_mtime_ns
            if seen == self._seen:
                return
            self._seen = seen
            found = read_aliases_file(self._kept)
            self._own = {
                name: alias
                for name, alias in found.items()
                if trouble_with(name, alias.line, KNOWN) is None
            }

    def expand(self, line: str) -> str:
        """Return ``line`` with its alias expanded; raises UsageError as ``expand_alias``."""
        self.refresh()
        return expand_alias(line, self.aliases)

    def define(self, words: str) -> str:
        """Keep the alias in ``NAME = LINE``; return a message, or raise UsageError."""
        match = DEFINED.fullmatch(words)
        if match is None or not match[2]:
            return self.listed(words.strip())
        name, line = match[1], match[2]
        if len(line) > 1 and line[0] in "'\"" and line[-1] == line[0] and line.count(line[0]) == 2:
            line = line[1:-1]  # as in shells' aliases
        trouble = trouble_with(name, line, KNOWN)
        if trouble is not None:
            raise trouble
        alias = Alias(name, line)
        before = self._configured.get(name)
        self._own[name] = alias
        hides = f", in place of {before.place}" if before else ""
        if mask_secrets(line) != line:
            return f"{name} is an alias of this session{hides}: it is not kept, for it has a secret in it"
        return f"{name} is an alias{hides}{self._keep(name, line)}"

    def forget(self, name: str) -> str:
        """Forget an alias of the prompt's; return a message, or raise UsageError."""
        if name in self._own:
            del self._own[name]
            return f"{name} is no alias any more{self._keep(name, '')}"
        if name in self._configured:
            raise UsageError(
                f"the alias {name} stands in {self._configured[name].place}", "take it out there"
            )
        raise UsageError(f"there is no alias {name}", "'alias' lists them")

    def listed(self, name: str = "") -> str:
        found = [alias for alias in self.aliases.values() if name in ("", alias.name)]
        if not found:
            return (
                f"there is no alias {name}" if name else "no aliases: alias NAME = LINE makes one"
            )
        return "\n".join(
            f"alias {alias.name} = {mask_secrets(alias.line)}"
            + (f"  ({alias.place})" if alias.place else "")
            for alias in sorted(found, key=lambda alias: alias.name)
        )

    def _keep(self, name: str, line: str) -> str:
        if self._kept is None:
            return ""
        try:
            keep_alias(self._kept, name, line)
        except OSError as error:
            return f" of this session: {self._kept}: {error.strerror or 'in use'}"
        if line:
            self._own[name] = replace(self._own[name], place=str(self._kept))
        return ""
