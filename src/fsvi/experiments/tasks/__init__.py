"""The paper's tasks, one file for each."""
