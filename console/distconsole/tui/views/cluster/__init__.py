"""The hosts with their GPUs, and the page of one host."""
