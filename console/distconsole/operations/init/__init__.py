"""The verb ``init``: from a list of hosts to a ``distconsole.toml`` that is checked."""
