"""How an unfinished line may go on."""
