"""What is wrong with a run: each module finds one kind of trouble."""
