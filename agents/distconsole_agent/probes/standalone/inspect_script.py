"""Program: looks at a training script and its imports, in the interpreter that would run it.

It executes nothing of the script and imports none of its modules. A dead filesystem blocks its callers
for ever, so each step that may hang is a part of its own.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import importlib.machinery
import importlib.util
import itertools
import os
import re
import stat
import subprocess
import sys
from typing import Any

from distconsole_agent.contract.git import ask_git, is_changed
from distconsole_agent.probes.standalone.reporting import (
    ProgramPart,
    begin,
    import_metadata,
    resolve,
    say,
    wait_and_leave,
    why,
)

MAX_SOURCE_BYTES = 4 * 1024 * 1024
MAX_FILES = 400
MAX_CODE_BYTES = 32 * 1024 * 1024
MAX_MODULES = 400
MAX_ENTRIES = 4096
LIGHT = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


def describe(path: str) -> dict[str, Any]:
    try:
        found = os.stat(path)
    except OSError as error:
        return why(error)
    regular, folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
    enter = os.X_OK if folder else 0
    return {
        "kind": "file" if regular else "folder" if folder else "other",
        "size": found.st_size,
        "modified": found.st_mtime,
        "inode": found.st_ino,
        "real": os.path.realpath(path),
        "readable": os.access(path, os.R_OK | enter),
        "writable": os.access(path, os.W_OK | enter),
        "error": "",
    }


def argument(path: str) -> dict[str, object]:
    """Facts of a path among the script's arguments; for a missing one if it could be created."""
    facts = describe(path)
    if facts.get("kind") == "folder":
        # An unreadable folder has no number of entries.
        with contextlib.suppress(OSError), os.scandir(path) as found:
            facts["entries"] = sum(1 for _ in itertools.islice(found, MAX_ENTRIES))
    if facts["error"]:
        above = os.path.dirname(path)
        while above not in ("", "/") and not os.path.isdir(above):
            above = os.path.dirname(above)
        facts["above"] = above
        facts["writable"] = os.access(above or "/", os.W_OK | os.X_OK)
    return facts


def content(path: str, table: Any) -> bytes:
    """A source; ``table`` is None or holds, by absolute path, the sources, which lie on no disk here."""
    if table is not None:
        if path not in table:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return bytes(table[path].encode("utf-8", "surrogateescape"))
    with open(path, "rb") as file:
        return file.read(MAX_SOURCE_BYTES + 1)


def is_file(path: str, table: Any) -> bool:
    return path in table if table is not None else os.path.isfile(path)


def is_folder(path: str, table: Any) -> bool:
    if table is not None:
        return any(name.startswith(path + "/") for name in table)
    return os.path.isdir(path)


class ImportWalk:
    """A script's imports, from file to file, within ``root``, the first folder of their search path."""

    def __init__(self, root: str, table: Any) -> None:
        self.root, self.table = os.path.normpath(root), table
        self.files: dict[str, dict[str, object]] = {}
        self.modules: dict[str, bool] = {}
        self.problem: dict[str, object] = {}
        self.cut = False
        self.own_path = False
        self.bytes = 0

    def go(self, path: str, packages: list[str]) -> None:
        """Look at the source at ``path``, at its packages, and then at all that they lead to."""
        waiting = [*((each, True) for each in packages), (path, True)]
        while waiting:
            path, needed = waiting.pop()
            name = os.path.relpath(path, self.root)
            if name in self.files:
                continue
            if len(self.files) >= MAX_FILES or self.bytes > MAX_CODE_BYTES:
                self.cut = True
                return
            try:
                source = content(path, self.table)
            except OSError as error:
                self.files[name] = why(error)
                continue
            self.bytes += len(source)
            self.files[name] = {
                "sha256": hashlib.sha256(source).hexdigest(),
                "size": len(source),
                "modified": os.stat(path).st_mtime if self.table is None else 0.0,
                "error": "",
            }
            waiting += self.follow_imports(path, source, needed)

    def follow_imports(self, path: str, source: bytes, needed: bool) -> list[Any]:
        """Return the sources that a file imports, each with "is needed"; note the other modules."""
        try:
            tree: Any = compile(source, path, "exec", ast.PyCF_ONLY_AST, True)
            compile(tree, path, "exec", 0, True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, UnicodeError) as error:
            if needed and not self.problem:
                self.problem = problem(error, os.path.relpath(path, self.root))
            return []
        found = Imports()
        found.visit(tree)
        self.own_path = self.own_path or found.own_path
        led = []
        for level, module, names, light in found.seen:
            for target, full in self.find_targets(path, level, module, names):
                if target:
                    led.append((target, needed and not light))
                elif full and len(self.modules) < MAX_MODULES:
                    self.modules[full] = self.modules.get(full, False) or (needed and not light)
        return led

    def find_targets(self, path: str, level: int, module: str, names: list[str]) -> list[Any]:
        """Return files of ours that an import leads to, and the first name of one that is not ours."""
        place, first = self.root, module.partition(".")[0]
        if level:
            place = os.path.normpath(os.path.join(path, *[".."] * level))
            if place != self.root and not place.startswith(self.root + "/"):
                return []
        elif not self.is_ours(first):
            return [("", first)]
        found = []
        for part in module.split(".") if module else []:
            place = os.path.join(place, part)
            found += self.files_at(place)
        for name in names:
            found += self.files_at(os.path.join(place, name))
        return [(target, "") for target in dict.fromkeys(found)]

    def is_ours(self, first: str) -> bool:
        """Return True if a module of this name is found in our folder first."""
        if first in sys.builtin_module_names:
            return False
        place = os.path.join(self.root, first)
        if self.files_at(place):
            return True
        # A folder without an __init__.py comes after every one that has it, in any place.
        return is_folder(place, self.table) and locate(first) in ("", place)

    def files_at(self, place: str) -> list[str]:
        inside = os.path.join(place, "__init__.py")
        found = [path for path in (inside, place + ".py") if is_file(path, self.table)]
        return found[:1]


def problem(error: Exception, name: str) -> dict[str, Any]:
    if isinstance(error, SyntaxError):
        what, text = str(error.msg)[:200], (error.text or "").strip()[:200]
        return {"file": name, "line": error.lineno or 0, "what": what, "text": text}
    return {"file": name, "line": 0, "what": f"{type(error).__name__}: {error}"[:200]}


class Imports(ast.NodeVisitor):
    """Collects imports: (level, module, names, True if the script can do without)."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.light = 0
        self.own_path = False

    def visit_Attribute(self, node: ast.Attribute) -> None:
        # Places that a script adds to sys.path are only known by running it.
        of_sys = node.attr == "path" and ast.unparse(node.value) == "sys"
        self.own_path = self.own_path or of_sys or node.attr == "addsitedir"
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.seen.append((0, alias.name, [], self.light > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = [alias.name for alias in node.names if alias.name != "*"]
        self.seen.append((node.level, node.module or "", names, self.light > 0))

    def visit_lightly(self, nodes: Any) -> None:
        self.light += 1
        self.visit_all(nodes)
        self.light -= 1

    def visit_all(self, nodes: Any) -> None:
        for node in nodes:
            self.visit(node)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self.visit_lightly(ast.iter_child_nodes(node))
        else:
            super().visit(node)

    def visit_If(self, node: ast.If) -> None:
        if any(isinstance(x, ast.Constant) and x.value == "__main__" for x in ast.walk(node.test)):
            self.generic_visit(node)
        else:
            self.visit_lightly([*node.body, *node.orelse])

    def visit_Try(self, node: ast.Try) -> None:
        guarded = [*node.body, *node.handlers]
        if any(map(catches, node.handlers)):
            self.visit_lightly(guarded)
        else:
            self.visit_all(guarded)
        self.visit_all([*node.orelse, *node.finalbody])


def catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(each, ast.Name) and each.id in LIGHT for each in ast.walk(handler.type))


def locate(module: str) -> str:
    """Where a top-level module lies, empty if nowhere; it is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # noqa: BLE001 - a third-party finder may raise anything: it found nothing
        return ""
    if spec is None:
        return ""
    if spec.origin not in (None, "namespace"):
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), "namespace")


def modules_of(walk: ImportWalk, folders: list[str]) -> dict[str, Any]:
    """Where the interpreter finds each module that is not ours, and its version; ``folders`` it searches first."""
    owners = owners_of(set(walk.modules), [*folders, *sys.path])
    library = os.path.dirname(os.__file__) + "/"
    sys.path[:0] = folders  # only now: our own imports are not the script's
    found = {}
    for module, needed in sorted(walk.modules.items()):
        place = locate(module)
        package, version = owners.get(module, ("", ""))
        standard = place.startswith(library) and "-packages/" not in place
        if not package and (standard or place in ("built-in", "frozen")):
            continue
        found[module] = {
            "needed": needed,
            "found": place != "",
            "place": place,
            "package": package,
            "version": version,
        }
    return found


def owners_of(modules: set[str], path: list[str]) -> dict[str, Any]:
    """By module the name and version of the distribution that it belongs to."""
    found: dict[str, object] = {}
    if not modules:
        return found
    metadata = import_metadata()
    for each in metadata.distributions(path=path):
        try:
            name = next(iter(each.metadata.get_all("Name", [])), "")
            version = str(each.version)
            tops = (each.read_text("top_level.txt") or "").split()
            if not tops and name:
                tops = tops_of(each, name, modules)
        except Exception:  # noqa: BLE001, S112 - one broken package hides no others
            continue
        for top in tops:
            if top in modules and name:
                found.setdefault(top, (str(name), version))
    return found


def tops_of(package: Any, name: str, modules: set[str]) -> list[str]:
    """The top-level names of a distribution that does not list them: by its name, else its files."""
    plain = re.sub(r"[-.]+", "_", name).lower()
    if named := [module for module in modules if module.lower() == plain]:
        return named
    record = package.read_text("RECORD") or ""
    if len(record) > 1 << 20:
        return []
    first = {line.partition("/")[0].partition(",")[0] for line in record.splitlines()}
    return [module for module in modules if module in first or module + ".py" in first]


def script(job: dict[str, Any]) -> None:
    """The script or module, its local code, and its imports."""
    table = job.get("sources")
    path, root = job["path"], job["root"]
    if job["module"]:
        place = os.path.join(root, *path.split("."))
        found = (place + ".py", os.path.join(place, "__main__.py"))
        path = next((each for each in found if is_file(each, table)), "")
        if not path:
            installed = locate(job["path"].partition(".")[0]) != ""
            say("script", {"kind": "module", "installed": installed, "error": ""})
            return
    facts = {"kind": "file", "error": "", "readable": True} if table else describe(path)
    if facts.get("kind") == "folder" and is_file(os.path.join(path, "__main__.py"), table):
        root, path = path, os.path.join(path, "__main__.py")
        facts = describe(path)
    facts["path"], source = path, None
    if facts.get("kind") == "file":
        try:
            source = content(path, table)
        except OSError as error:
            facts.update(readable=False, **why(error))
    if source is None:
        say("script", facts)
        return
    facts.update(
        sha256=hashlib.sha256(source).hexdigest(),
        binary=b"\0" in source[:65536],
        too_large=len(source) > MAX_SOURCE_BYTES,
        shell=is_shell(path, source),
        crlf=source[:2] == b"#!" and source.partition(b"\n")[0].endswith(b"\r"),
    )
    say("script", facts)
    if facts["binary"] or facts["too_large"] or facts["shell"]:
        return
    walk = ImportWalk(root, table)
    above = job["path"].split(".")[:-1] if job["module"] else []
    folders = [os.path.join(root, *above[: count + 1]) for count in range(len(above))]
    inits = [os.path.join(folder, "__init__.py") for folder in folders]
    walk.go(path, [init for init in inits if is_file(init, table)])
    told = {"files": walk.files, "problem": walk.problem, "cut": walk.cut}
    say("code", dict(told, own_path=walk.own_path))
    if job["imports"]:
        say("modules", modules_of(walk, [] if job["sources"] else [root]))


def is_shell(path: str, source: bytes) -> bool:
    """Return True if a script is not Python: by its ``#!`` line, else by its suffix."""
    first = source.partition(b"\n")[0] if source[:2] == b"#!" else b""
    if first and not path.endswith(".py"):
        return b"python" not in first and b"pypy" not in first
    return path.endswith((".sh", ".bash", ".slurm", ".sbatch"))


def workdir(job: dict[str, Any]) -> None:
    facts = describe(job["workdir"])
    say("workdir", facts)
    if facts.get("kind") == "folder" and job["git"]:
        say("git", git_state(job["workdir"]))


def git_state(folder: str) -> dict[str, Any]:
    """The commit that is checked out, and whether tracked files differ from it: None with filters of its own."""
    head, dirty = "", None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        head = ask_git(folder, "rev-parse", "HEAD", seconds=1.0).strip()[:64]
        dirty = is_changed(folder, seconds=1.0)
    return {"head": head, "dirty": dirty}


def main(seconds: float, **job: Any) -> None:
    """Look at everything at once; ``job`` is as ``probes/software/script.py`` describes it."""
    ends = begin(seconds)
    version = ".".join(map(str, sys.version_info[:3]))
    say("python", {"executable": sys.executable, "version": version})
    parts = [ProgramPart("script", script, job), ProgramPart("workdir", workdir, job)]
    parts += [ProgramPart("path " + path, argument, path) for path in job["paths"]]
    parts += [ProgramPart("address", resolve, job["address"])] if job["address"] else []
    wait_and_leave(parts, ends)
