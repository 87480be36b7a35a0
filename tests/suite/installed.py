"""The agent's file and its compiled form, as the first login leaves them on a node, for tests of something else.

That login costs a node 0.28 seconds of a core: it compiles the agent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from distconsole.rpc.pack import agent_pack
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole_agent.node_folder.compiled import keep_compiled


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    pack = agent_pack()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, pack.name)
        path.write_bytes(pack.content)
        keep_compiled(str(path))
        return {each.name: each.read_bytes() for each in path.parent.iterdir()}


def install_agent(*caches: Path) -> None:
    """Write the files into nodes' cache folders (``XDG_CACHE_HOME``)."""
    for cache in caches:
        folder = cache / "distconsole"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in _files().items():
            (folder / name).write_bytes(content)


@contextmanager
def embedded_nodes(folder: Path) -> Iterator[EmbeddedCluster]:
    """Two embedded nodes in ``folder``, with these files."""
    install_agent(*(folder / node / "cache" for node in ("node1", "node2")))
    with EmbeddedCluster(2, folder=folder) as nodes:
        yield nodes
