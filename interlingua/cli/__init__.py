"""The command line: `interlingua serve | generate | pull | info`, and the only place where all rooms meet.

`options.py` is the one table of everything an operator can set; flags, environment variables, configuration
files and `docs/configuration.md` are made from it.
"""
