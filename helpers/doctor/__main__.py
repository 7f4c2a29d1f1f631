"""`python -m` of this folder."""

import sys

from .program.command_line import main

if __name__ == "__main__":
    sys.exit(main())
