"""The prompt: its line, completion, history, keys and questions."""
