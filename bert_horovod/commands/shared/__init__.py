"""Code that several commands share; not a command."""
