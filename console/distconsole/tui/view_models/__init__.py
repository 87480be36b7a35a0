"""What views draw, worked out without a screen."""
