"""`python -m mnemolab`."""

import sys

from mnemolab.cli import main

if __name__ == "__main__":
    sys.exit(main())
