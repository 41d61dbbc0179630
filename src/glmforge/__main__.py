"""`python -m glmforge` is the program `glmforge`: what launchers such as torchrun start.

It adds nothing of its own; the commands are in `glmforge.cli`.
"""

import sys

from glmforge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
