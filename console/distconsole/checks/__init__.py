"""What is checked and how it is judged: facts from the agents, verdicts by pure rules."""

from distconsole.checks.passport import Passports
from distconsole.checks.reference import explain, explain_check
from distconsole.checks.run import run_check

__all__ = ["Passports", "explain", "explain_check", "run_check"]
