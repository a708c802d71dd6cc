"""Distributions over a network's parameters."""
