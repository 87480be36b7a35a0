"""Turns a run's journal into events, a store and a timeline."""
