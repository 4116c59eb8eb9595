"""Speed and memory of models, next to other libraries and runtimes in the same process."""
