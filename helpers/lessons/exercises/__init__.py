"""The exercises, one module a chapter: every `Exercise` in it, in the order in which they stand."""
