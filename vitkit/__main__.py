"""`python -m vitkit` is `vit`."""

import sys

from vitkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
