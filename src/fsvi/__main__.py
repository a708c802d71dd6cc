"""`python -m fsvi` is the `fsvi` command."""

from fsvi.cli import main

main()
