"""Programs that ``setup`` brings to nodes and has their Python run: 3.9, standard library only."""
