"""`python -m glmforge` is the program `glmforge`: what launchers such as torchrun start.

It adds nothing of its own; the commands are in `glmforge.cli`.
"""

from glmforge.cli.main import run

if __name__ == "__main__":
    run()
