"""The views: cluster, check, run, its logs, past runs, and more."""
