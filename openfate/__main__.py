"""`python -m openfate` is `openfate`."""

from openfate.cli import main

if __name__ == "__main__":
    main()
