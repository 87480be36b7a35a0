"""What the agent needs of the operating system: events, sockets, clocks, small files of the kernel."""
