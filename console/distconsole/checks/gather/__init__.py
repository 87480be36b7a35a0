"""Where facts come from: questions to hosts, connections between them, short jobs over all of them."""
