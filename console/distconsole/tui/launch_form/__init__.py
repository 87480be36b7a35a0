"""The launch form: one line as fields, and the plan that it would make."""
