"""The campaign: runs on simulated hosts, each with one seeded fault at a random moment, and what has to come of it."""
