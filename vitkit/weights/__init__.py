"""Weights: model folders, public weights, and files in other libraries' formats."""
