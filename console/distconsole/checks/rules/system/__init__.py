"""Checks of the operating system, its limits and folders, and of Slurm."""
