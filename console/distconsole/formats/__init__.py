"""What a run is written as for other programs and for people."""
