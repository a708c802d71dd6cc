"""Train one method on one task and keep the result."""
