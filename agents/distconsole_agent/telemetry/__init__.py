"""What a node says of its own load: host by psutil, GPUs by pynvml, each loaded at the first sample."""
