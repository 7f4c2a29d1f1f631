"""The same function under other circumstances: what gradcheck does not ask.

A trial is a generator that takes an `Examination` and yields findings; `trials.py` says in which
order they run. To ask for the same gradient once more with one thing changed: a row in `again.py`.
Any other: a generator under `@trial()` in the file that it belongs to. Each with a patient.
"""
