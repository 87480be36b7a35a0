"""Input that nobody would write, for all that reads what others have written.

``console_targets``, ``node_targets`` and ``structured_targets`` say what is tried and what may come of it,
``judging`` holds each try to it, ``mutation`` makes input of the corpus. ``make test`` tries the corpus and some
thousand inputs, the same each time; ``python -m fuzz`` goes on for as long as it is told, guided by coverage.
"""
