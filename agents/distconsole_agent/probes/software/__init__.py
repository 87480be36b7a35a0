"""Facts of installed software: Python, torch, Horovod, MPI, and a launch's script."""
