"""The operator's program. Importing the package imports nothing else."""

__version__ = "0.1.0"
