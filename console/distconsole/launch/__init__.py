"""From a job and facts to a plan, and from a plan to processes."""
