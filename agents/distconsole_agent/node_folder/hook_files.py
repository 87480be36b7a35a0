"""Unpacks the hook that ranks load into the node folder."""

from __future__ import annotations

import hashlib
import os

from distconsole_agent.node_folder.folders import NodeFolders, Program, remove_tree

PACKAGE = "distconsole_training/"
SITE = PACKAGE + "_sitecustomize.py"
"""What becomes ``sitecustomize.py`` beside the package: the name that Python looks for."""


def unpack_hook(folders: NodeFolders, program: Program) -> str:
    """Return the folder for ``PYTHONPATH`` with our ``sitecustomize``, written if it is not there yet.

    Raises:
        OSError: when it cannot be written.
    """
    tag = program.tag
    if program.archive is not None:
        path = os.path.join(folders.node_dir, f"hook-{tag}")
        if _in_place(path):
            return path
        files = _from_archive(program.archive)
    else:
        files = _from_package()
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(name.encode() + b"\0" + files[name] + b"\0")
        path = os.path.join(folders.node_dir, f"hook-{digest.hexdigest()[:16]}")
    if not _in_place(path):
        _write(path, files)
    return path


def _in_place(path: str) -> bool:
    """Say whether the hook is there, and note that it is in use (see ``leftovers``)."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _from_archive(archive: str) -> dict[str, bytes]:
    import zipfile

    with zipfile.ZipFile(archive) as packed:
        names = [name for name in packed.namelist() if _is_wanted(name)]
        return {name: packed.read(name) for name in names}


def _from_package() -> dict[str, bytes]:
    from distconsole_agent.journal.rings import training_folder

    base = training_folder()
    files: dict[str, bytes] = {}
    for folder, _folders, names in os.walk(base):
        for name in names:
            full = os.path.join(folder, name)
            inside = PACKAGE + os.path.relpath(full, base)
            if _is_wanted(inside):
                with open(full, "rb") as file:
                    files[inside] = file.read()
    return files


def _is_wanted(name: str) -> bool:
    return name.startswith(PACKAGE) and name.endswith(".py")


def _write(path: str, files: dict[str, bytes]) -> None:
    """Write everything aside and move it into place, so that no rank sees half of it."""
    aside = f"{path}.{os.getpid()}"
    remove_tree(aside)
    os.mkdir(aside, 0o700)
    for name, data in files.items():
        _write_file(os.path.join(aside, name), data)
    _write_file(os.path.join(aside, "sitecustomize.py"), files[SITE])
    try:
        os.rename(aside, path)
    except OSError:
        # Another agent was faster.
        remove_tree(aside)
        if not os.path.isdir(path):
            raise


def _write_file(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
