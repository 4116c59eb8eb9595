"""VTAB-1k: 19 tasks of 1,000 images, each fine-tuned on its own."""
