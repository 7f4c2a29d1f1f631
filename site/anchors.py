"""What a heading is called in a link; a file of its own, because Sphinx stores the function."""

from urllib.parse import quote

from mdurl import decode


def of_jupyterlab(heading):
    """As JupyterLab does it, so that one link leads to the section in both; as MyST reads it."""
    return decode(quote(heading.replace(" ", "-")))
