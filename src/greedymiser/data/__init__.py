"""From a user's table to bins."""
