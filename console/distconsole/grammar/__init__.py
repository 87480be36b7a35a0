"""One grammar for the shell and for the prompt: text in, a frozen ``Request`` out, no effects.

``verbs.py`` takes a shell's words or a line of the prompt, ``completion.py`` says how an unfinished line may go on.
click lives here and nowhere else.
"""
