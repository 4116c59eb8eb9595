"""Pictures from plain numbers: palette, text and tiles, bars, curves, confusion matrices, maps."""
