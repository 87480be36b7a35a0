"""The only door to what distconsole does: a request in, events out."""

from distconsole.operations.control import Control, StopReason, interrupt
from distconsole.operations.perform import perform
from distconsole.operations.sessions import SessionSource

__all__ = ["Control", "SessionSource", "StopReason", "interrupt", "perform"]
