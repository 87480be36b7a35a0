"""The program that runs on each node. Importing the package imports nothing else."""

__version__ = "0.1.0"
