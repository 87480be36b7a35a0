"""A run as one page of HTML that asks no network for anything."""

from distconsole.formats.page.page import page_of

__all__ = ["page_of"]
