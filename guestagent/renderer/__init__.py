"""The screen: turns a session's output into the picture that a terminal would show."""
