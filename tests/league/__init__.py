"""The league table: real trainings with seeded faults, and whom the diagnosis blames for each."""
