"""Widgets that the views draw with: lines, curves, bars."""
