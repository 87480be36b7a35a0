"""The functions for training scripts, exported by the package itself."""
