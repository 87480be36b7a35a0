"""Runs whose ranks another program starts: mpirun, elastic Horovod, Slurm's srun."""
