"""Data: DATA strings become sources, sources become augmented batches."""
