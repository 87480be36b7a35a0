"""What is on the screen: one view each for the cluster, a check, a run, its logs, and past runs."""
