"""Where snapshots lie: directories and object stores."""
