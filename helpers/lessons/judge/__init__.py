"""How an attempt is judged.

What it is fed, what is compared, what else must hold, what is said.
"""
