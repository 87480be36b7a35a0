"""Themes, and colours by meaning."""
