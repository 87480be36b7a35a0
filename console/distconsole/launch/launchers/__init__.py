"""The launchers: each turns a job into the plan of its ranks."""
