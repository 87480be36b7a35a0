"""Cures of findings: what to type, and small tests that prove a cure."""
