"""Training: `run.py` is `vitkit.train`, `loop.py` the loop itself."""
