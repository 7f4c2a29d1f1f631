"""Rounds over a program, which `plugin.py` and `__main__.py` of the folder above start, too.

`rounds.py` hears and copies the calls, `bounds.py` examines them within their seconds, in a child
process where it can. A newcomer may add an option of the plugin: a row of OPTIONS in `plugin.py`.
"""
