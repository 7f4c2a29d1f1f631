"""What is done by Node.js while the pages are made: formulas, the index of the search."""

import json
import subprocess
from pathlib import Path

SITE = Path(__file__).parent


def node(script, **asked):
    """What a script of this folder prints, for what it is handed as JSON."""
    command = ["node", SITE / script]
    done = subprocess.run(
        command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
