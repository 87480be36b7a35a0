"""The hosts and their GPUs, and what is known of one host."""
