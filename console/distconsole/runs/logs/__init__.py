"""The lines that ranks printed: kept, filtered, folded and searched."""
