"""Facts of GPUs: what NVML tells of them, and copies that load them."""
