"""The exercises, and the verdict on a solution that was edited."""

from helpers.lessons.exercise import exercises

EXERCISES = {given.number: given for given in exercises()}


def judged(number, edits):
    """The verdict on the solution, edited."""
    given = EXERCISES[number]
    return given.judge(given.made_of(given.edited(edits)))
