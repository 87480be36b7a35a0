"""Facts of GPUs: NVML's answers, and copies that load them."""
