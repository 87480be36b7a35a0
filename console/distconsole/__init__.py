"""The operator's program. Importing the package imports nothing else."""

from distconsole_agent import __version__

__all__ = ["__version__"]
