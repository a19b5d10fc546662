"""A run as one HTML page: the data of a run in, text out. Pure."""
