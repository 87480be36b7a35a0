"""The frozen vocabulary of the console: values only."""
