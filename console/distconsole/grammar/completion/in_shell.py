"""What a shell's completion knows to exist: names in the configuration, in ssh_config, and stored runs. It asks no host."""

from __future__ import annotations

import contextlib
import os

from distconsole.config.hostfile import names_in
from distconsole.config.load import load_config
from distconsole.config.paths import runs_dir
from distconsole.config.ssh_names import own_ssh_config, ssh_config_file, ssh_names
from distconsole.errors import ConsoleError
from distconsole.grammar.values import Vocabulary

MAX_RUNS = 100


def shell_vocabulary() -> Vocabulary:
    """Return it; what cannot be read is left out."""
    hosts: dict[str, None] = {}
    clusters: tuple[str, ...] = ()
    ssh_config = None
    with contextlib.suppress(ConsoleError):
        config = load_config(refuse=False)
        ssh_config = config.ssh_config
        clusters = tuple(config.clusters)
        for cluster in config.clusters.values():
            hosts |= dict.fromkeys(names_in(cluster.hosts))
        hosts |= dict.fromkeys(config.hosts)
    ssh_config = ssh_config_file(None, ssh_config, os.environ) or own_ssh_config()
    hosts |= dict.fromkeys(ssh_names(ssh_config))
    runs: list[str] = []
    with contextlib.suppress(OSError):
        files = [(path.stat().st_mtime, path.stem) for path in runs_dir().glob("*.db")]
        runs = [name for _, name in sorted(files, reverse=True)[:MAX_RUNS]]
    return Vocabulary(hosts=tuple(hosts), runs=tuple(runs), clusters=clusters)
