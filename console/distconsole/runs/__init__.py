"""What a run does, from its journal to events, a store and a timeline."""
