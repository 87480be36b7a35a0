"""Test suites of other projects and programs of our own, run bare and watched; every test must end alike."""
