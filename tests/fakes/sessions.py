"""Where sessions come from in tests whose requests must ask for none."""

from typing import NoReturn

from distconsole.model.requests import Where


def no_session(where: Where) -> NoReturn:
    """Raises: AssertionError, whatever hosts are asked for."""
    raise AssertionError(f"no host is needed, and one was asked for: {where}")
