"""The shim: the parent of a run's ranks on one node, which starts them, notes their ends and takes them down."""
