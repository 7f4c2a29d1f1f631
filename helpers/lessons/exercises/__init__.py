"""The exercises, one module a chapter.

Every `Exercise` in it, in the order in which they stand.
"""
