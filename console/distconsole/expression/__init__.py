"""One small language of conditions on ranks, runs and hosts.

Tables of fields (``fields``) say what may be asked; ``parse_condition`` makes a text into a ``Condition``.
"""

from distconsole.expression.fields import Field, Fields, Kind, Value
from distconsole.expression.parse import Condition, ExpressionError, parse_condition

__all__ = ["Condition", "ExpressionError", "Field", "Fields", "Kind", "Value", "parse_condition"]
