"""Themes, and colours by what they mean."""
