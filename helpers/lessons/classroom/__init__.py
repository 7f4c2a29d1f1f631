"""Notebooks that were handed in, run and read; a trial of exercises of your own."""
