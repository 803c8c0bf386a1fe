"""What the experiments found, and those that are run from here."""
