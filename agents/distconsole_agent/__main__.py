"""The program's verbs: bridge, agent, shim and the helpers that run below a shim."""

from __future__ import annotations

import sys

USAGE = """usage: agent.pyz bridge [--node-dir DIR]
       agent.pyz agent [--node-dir DIR] [--idle-seconds N]
       agent.pyz shim --run DIR
       agent.pyz step-ended --run DIR --code N [--held]
       agent.pyz elastic-driver"""


def main(argv: list[str] | None = None) -> int:
    """Do the verb that ``argv`` (the command line unless given) names; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    verb, options = (words[0], words[1:]) if words else ("", [])
    if verb == "shim":
        from distconsole_agent.supervisor import shim_program

        return shim_program.main(options)
    if verb == "step-ended":
        from distconsole_agent.engines.slurm import attend_to_end

        return attend_to_end(options)
    if verb == "elastic-driver":
        from distconsole_agent.engines import elastic_horovod

        return elastic_horovod.main(options)
    names, values = options[::2], dict(zip(options[::2], options[1::2]))
    is_known = len(options) % 2 == 0 and set(names) <= {
        "--node-dir",
        "--idle-seconds",
        "--lock-fd",
    }
    if not is_known or verb not in ("bridge", "agent"):
        sys.stderr.write(USAGE + "\n")
        return 2
    from distconsole_agent.node_folder.folders import default_node_dir

    node_dir = values.get("--node-dir") or default_node_dir()
    if verb == "bridge":
        from distconsole_agent.server.bridge import bridge

        return bridge(node_dir)
    from distconsole_agent.server.serve import serve

    idle = values.get("--idle-seconds")
    lock = values.get("--lock-fd")
    return serve(node_dir, float(idle) if idle else None, int(lock) if lock else None)


if __name__ == "__main__":
    sys.exit(main())
