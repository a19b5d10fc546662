"""Storages of snapshots: directories and object stores."""
