"""What only the notebooks need: exercises, drawings, data."""

from helpers.lessons.exercise import exercise

__all__ = ["exercise"]
