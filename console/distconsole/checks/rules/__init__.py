"""The checks themselves, a module for each field. Pure functions from facts to findings."""
