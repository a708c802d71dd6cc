"""Memory and time of training, estimated before it starts."""
