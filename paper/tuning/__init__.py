"""The search for hyperparameters."""
