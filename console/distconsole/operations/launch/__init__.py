"""The verbs ``run`` and ``rerun``: from a request to ranks on hosts."""
