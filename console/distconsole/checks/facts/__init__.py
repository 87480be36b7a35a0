"""Facts of the hosts, as types, and all facts at one moment."""
