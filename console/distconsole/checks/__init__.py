"""What is checked and how it is judged: facts from the agents, verdicts by pure rules.

It names nothing of what it holds: a launch reads baselines, and would load every rule with them.
"""
