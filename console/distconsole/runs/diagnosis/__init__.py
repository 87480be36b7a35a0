"""From where every rank is to the one that the others wait for; pure."""
