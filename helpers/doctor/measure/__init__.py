"""What a gradient is, and what it should be.

`screen` says which gradients are wrong, by v · J · u along a few random directions; `Point` computes
those element by element; a `Measurement` compares one of them with what backward gives. What is
compared, and how exactly, is decided here and nowhere else: by `agrees` and `Measurement.fits`.
"""
