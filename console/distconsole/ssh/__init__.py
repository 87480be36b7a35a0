"""The way to a machine: SSH with verified host keys, or this machine itself."""
