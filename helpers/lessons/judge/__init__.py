"""How an attempt is judged.

Here stand what it is fed, what is compared, what else must hold, and what is said.
"""
