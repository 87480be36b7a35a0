"""Verbs about runs that are kept or still go on: shown, compared, exported, reported."""
