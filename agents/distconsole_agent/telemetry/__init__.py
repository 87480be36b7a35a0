"""What a node says of its own load: host by psutil, GPUs by pynvml, each loaded at the first sample.

Nothing here writes a journal or talks to the console, and importing it imports neither library.
"""
