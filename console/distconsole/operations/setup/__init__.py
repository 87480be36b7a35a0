"""The verb ``setup``: what the hosts lack is built once and installed."""
