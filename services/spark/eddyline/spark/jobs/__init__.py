"""Jobs: each a function of a session and options, and a program."""
