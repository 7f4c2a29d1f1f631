"""The exercises, one module a chapter, each with a list named `EXERCISES`."""
