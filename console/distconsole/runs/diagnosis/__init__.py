"""From the place of every rank to the rank that the others wait for; pure."""
