"""The training loop and its parts; side effects live here and in the commands only."""
