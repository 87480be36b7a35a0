"""What conditions may ask of checks, hosts, ranks and runs: tables of fields."""
