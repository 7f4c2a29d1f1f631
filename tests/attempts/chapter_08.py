"""Attempts at the exercises of chapter 08 that are no edits of the reference."""

ATTEMPTS = {"8.1": [(3, "the source, a string")]}
