"""A run in a Slurm job: submitted, waited for, started again."""
