"""Copy the template.

python -m helpers.template NAME FOLDER
"""

import argparse

from . import __doc__ as what_it_does
from . import make


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m helpers.template",
        description=what_it_does,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", help="of the package and its operators: my_ops"
    )
    parser.add_argument("folder", metavar="FOLDER", help="where it goes: new or empty")
    given = parser.parse_args(arguments)
    try:
        folder = make(given.name, given.folder)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{given.name} is in {folder}. There, next:")
    print('    pip install "setuptools>=77.0.3" pytest')
    print("    pip install --no-build-isolation .\n    pytest")


if __name__ == "__main__":
    main()
