"""Facts of one host: machine, folders, limits, processes, kernel log, Slurm."""
