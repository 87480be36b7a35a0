"""A run's journal, and the sources that are read into it: logs, rings, the shim, telemetry."""
