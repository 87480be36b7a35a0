"""Runs below Slurm: submitted, started by srun, shown beforehand."""
