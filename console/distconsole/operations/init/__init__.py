"""The verb ``init``: from hosts that somebody has to a ``distconsole.toml`` that is checked."""
