"""One small language of conditions on ranks, runs and hosts; it knows none of them.

Tables of fields (``fields``) say what may be asked; ``compiled`` makes a text into a ``Condition``.
"""

from distconsole.expression.condition import Condition, compiled
from distconsole.expression.fields import Field, Fields, Kind, Value
from distconsole.expression.mistakes import ExpressionError

__all__ = ["Condition", "ExpressionError", "Field", "Fields", "Kind", "Value", "compiled"]
