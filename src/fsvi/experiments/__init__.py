"""Recipes, figures and reports: uses all of the library, used by none of it."""
