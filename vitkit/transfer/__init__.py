"""Transfer: fine-tuning, the paper's suite and VTAB-1k."""
