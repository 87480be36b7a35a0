"""What MkDocs reads otherwise than GitHub does."""

import re
from typing import Any

from pymdownx.slugs import slugify


def on_config(config: Any) -> Any:
    """Name headings as GitHub does, so that one link serves both."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_page_content(html: str, **_: object) -> str:
    r"""Return the page with ``|`` for ``\|`` in code, which a table needs on GitHub."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace(r"\|", "|"), html)
