"""Tasks, runs, tuning, reports and benchmarks: uses all of the library, and nothing in the library uses it."""
