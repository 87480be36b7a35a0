"""Detectors of trouble in a run, one module for each kind."""
