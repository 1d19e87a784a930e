"""What several commands share; not a command."""
