"""The command line: arguments in, tables or JSON out. No arithmetic beyond units for people."""
