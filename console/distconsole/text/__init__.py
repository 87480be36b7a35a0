"""Events and reports in words, for the shell and for the prompt's transcript alike."""
