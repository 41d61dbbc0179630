"""The command line: parse, call, print; no logic.

One small module per command group; `main` puts them together and turns errors into exit statuses.
What is slow to import (torch, transformers) is imported inside the commands that need it.
"""
