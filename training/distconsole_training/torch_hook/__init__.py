"""The hook's part that knows torch: what it wraps, what it reads, what it checks."""
