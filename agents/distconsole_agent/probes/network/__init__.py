"""Facts of networks: addresses, ports, connections, bandwidth, RDMA."""
