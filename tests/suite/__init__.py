"""How the test suite itself behaves: what it hides, what it skips and what it must not leave."""
