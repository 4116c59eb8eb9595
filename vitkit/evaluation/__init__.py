"""A model over a source becomes numbers: `run.py` is `vitkit.evaluate`; few-shot, probe and kNN are next to it."""
