"""Tables of the fields in conditions on checks, hosts, ranks and runs."""
