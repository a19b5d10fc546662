"""Generated pages: each module has PATH, relative to the project, and `build`, its text."""
