"""Reports: self-contained HTML pages of runs and of inspected models."""
