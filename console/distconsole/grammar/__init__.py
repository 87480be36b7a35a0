"""One grammar for the shell and for the prompt: text in, a frozen ``Request`` out, no effects.

``parse_args`` takes a shell's words, ``parse_line`` a line of the prompt, ``complete_line`` says how
an unfinished line may go on. click lives here and nowhere else.
"""

from distconsole.grammar.completion.complete import Completion, complete_line
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import (
    VERBS,
    completion_script,
    parse_args,
    parse_line,
    parse_untrusted,
    shell_complete,
)
from distconsole.grammar.words import line_words

__all__ = [
    "VERBS",
    "Completion",
    "Vocabulary",
    "complete_line",
    "completion_script",
    "line_words",
    "parse_args",
    "parse_line",
    "parse_untrusted",
    "shell_complete",
]
