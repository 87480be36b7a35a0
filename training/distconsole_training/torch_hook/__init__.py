"""The hook's part that knows torch: wraps its calls, reads its values, checks its replicas."""
