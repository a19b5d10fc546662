"""Generated pages: each module has PAGES, their paths in the project and the functions that build them."""
