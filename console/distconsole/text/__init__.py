"""Events in words, for the shell and for the prompt's transcript alike; prints nothing itself."""
