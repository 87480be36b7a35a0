"""A node's own load: host by psutil, GPUs by pynvml, each loaded at the first sample."""
