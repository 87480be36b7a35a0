"""The colours of a heat map, on a page and on the screen. It draws none."""

from __future__ import annotations

CIVIDIS = (
    *((0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115)),
    *((138, 134, 120), (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56)),
)
"""Anchors of the colour map cividis (Nuñez, Anderton, Renslow 2018), which the colour-blind read alike."""
