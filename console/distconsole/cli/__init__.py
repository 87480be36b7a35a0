"""The headless front end: requests from a shell's words, events as text or JSON lines, exit codes."""
