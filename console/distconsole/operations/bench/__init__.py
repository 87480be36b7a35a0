"""The verb ``bench``: strategies and collectives, measured."""
