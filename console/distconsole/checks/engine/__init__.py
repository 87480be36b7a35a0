"""A check as a program: which checks are selected, run, judged and reported."""
