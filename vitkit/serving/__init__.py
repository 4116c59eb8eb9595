"""A model behind HTTP: the batcher with its latency bound, the API, the page, several processes."""
