"""What a run does, from its journal to events, a store and a picture; it never starts or stops one."""
