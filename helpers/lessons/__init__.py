"""What only the notebooks need: exercises, drawings, data."""

from helpers.lessons.checking import exercise

__all__ = ["exercise"]
