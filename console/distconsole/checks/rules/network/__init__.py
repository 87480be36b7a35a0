"""Checks of networks, names and ssh between the hosts."""
