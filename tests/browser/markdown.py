"""What the Markdown of a page holds."""

import json
import re


def formulas(path):
    """How many formulas there are in a notebook, or in a file of Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"(?s:```.*?```)|`[^`\n]*`", "", text)
    return len(re.findall(r"(?s:\$\$.+?\$\$)|\$[^$\n]+\$", text))
