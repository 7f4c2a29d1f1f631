"""Rounds over a program, which the plugin and the command line start.

`rounds.py` hears and copies the calls, `examined.py` examines them, `found.py` says
what was found.
"""
