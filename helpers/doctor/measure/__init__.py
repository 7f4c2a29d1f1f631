"""What a gradient is, and what it should be.

`screen` says which gradients are wrong, by v · J · u along a few random directions;
`Point` says what they should be, element by element; a `Comparison` compares that with
what backward gives. How exactly is decided here and nowhere else: by `agrees` and by
`Comparison.fits`.
"""
