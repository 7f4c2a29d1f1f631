"""The exercises, one module a chapter: every `Exercise` in it, in their order."""
