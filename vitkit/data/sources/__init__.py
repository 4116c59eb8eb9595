"""Where labelled images come from, one file per kind."""
