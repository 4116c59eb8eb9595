"""Studies: many runs from one file, what they cost before they start, and the laws that their results follow."""
