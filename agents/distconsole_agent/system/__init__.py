"""The agent's operating system layer: events, sockets, clocks, small files of the kernel."""
