"""Predicts the interface and address that each library will take on each host, from the hosts' facts."""
