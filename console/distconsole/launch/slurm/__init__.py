"""Runs below Slurm: submitted, started by srun, shown before they are."""
