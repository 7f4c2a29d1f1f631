"""Rounds over a program, which `plugin.py` and `__main__.py` of the folder above start,
too.

`rounds.py` hears and copies the calls, `examined.py` examines them, `found.py` says
what was found.
"""
