"""The frozen vocabulary of the console: values only, no input or output."""
