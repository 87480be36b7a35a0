"""Widgets that know nothing of runs or hosts: lines, curves, bars."""
