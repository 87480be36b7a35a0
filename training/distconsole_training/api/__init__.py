"""What a training script may call, exported by the package itself."""
