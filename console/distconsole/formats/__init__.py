"""What a run is written as for other programs and for people. It asks no host and chooses no run."""
