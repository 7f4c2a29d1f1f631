"""What may be wrong with a gradient: each cause with its sentence, where to look, and its test.

They are tried in the order of these files, and in each in the order in which they stand there, the
simplest first; the first that fits is named. A test takes the `Measurements` of one wrong gradient; it
returns False, True, or the words that fill the gaps of the sentence. `before` names those further
down that fit the same gradients now and then, or are themselves before such, and the comment says
why. To add a cause: one block in one of the files, and one patient.
"""

from . import contributions, factors, formulas, places

CAUSES = [cause for group in (factors, places, contributions, formulas) for cause in group.cause]
