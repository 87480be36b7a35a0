"""Training scripts to start from. Nothing here is imported by the package."""
