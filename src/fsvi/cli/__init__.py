"""The command line."""

from fsvi.cli.app import app, main

__all__ = ["app", "main"]
