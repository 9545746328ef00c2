"""The parts of tests/run.py, which ./dev test starts."""
