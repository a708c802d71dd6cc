"""Runs: training, evaluation, and the files they leave."""
