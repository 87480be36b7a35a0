"""JSON for scripts that every check starts on every host: ``json`` takes longer to import than their work.

A script that imports it gets its text in place of the import (``sources``), so it imports no
``__future__`` and names nothing that a script could mean otherwise.
"""


def as_json(value: object) -> str:
    """Return what ``json.dumps`` does, by its engine alone where this Python has that."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        encode = make_encoder(
            None, str, encode_basestring_ascii, None, ":", ",", False, False, True
        )
        return "".join(encode(value, 0))
    except (ImportError, TypeError):
        import json

        return json.dumps(value)
