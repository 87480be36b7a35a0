"""Programs that probes start in other interpreters; each is one file of the standard library's means."""
