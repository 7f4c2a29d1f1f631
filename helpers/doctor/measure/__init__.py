"""What a gradient is, and what it should be.

slopes.py     derivatives from differences of forward
screening.py  which gradients are wrong, by v · J · u along a few random directions
point.py      what the gradients should be at one point, element by element
gradient.py   a gradient as it is and as it should be, at one point and at several

How exactly is decided here and nowhere else: by `agrees` and by `Gradient.fits`, within
the `tolerance` of the `Subject`.
"""
