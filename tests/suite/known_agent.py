"""The agent's file and its compiled program, as a node keeps them once a console has brought them.

A node compiles them in 0.4 seconds of a core: most tests are about what comes behind that.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from distconsole.rpc.pack import agent_pack
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole_agent.node_folder.compiled import keep_compiled


def leave_agent(cache_folder: Path) -> None:
    """Write both to a node's cache folder, as if a console had been there before."""
    folder = cache_folder / "distconsole"
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
    for name, content in _agent().items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)


@cache
def _agent() -> dict[str, bytes]:
    pack = agent_pack()
    with TemporaryDirectory() as folder:
        path = Path(folder, pack.name)
        path.write_bytes(pack.content)
        keep_compiled(str(path))
        return {each.name: each.read_bytes() for each in Path(folder).iterdir()}


def nodes_with_agent(folder: Path) -> EmbeddedCluster:
    """Return two embedded nodes to be opened in ``folder``; each has the agent's file."""
    nodes = EmbeddedCluster(2, folder=folder)
    for name in nodes.hosts:
        leave_agent(folder / name / "cache")
    return nodes
