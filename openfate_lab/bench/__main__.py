"""`python -m openfate_lab.bench`: for machines where only torch and numpy are installed."""

import sys

from openfate_lab.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
