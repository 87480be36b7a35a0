"""Which interface and address each library will take on each host, from what the hosts said of themselves."""
