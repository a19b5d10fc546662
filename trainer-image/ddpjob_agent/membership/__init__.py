"""Pure decisions about memberships: which workers train together, and from when."""
