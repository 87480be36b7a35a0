"""What views draw, worked out from events alone."""
