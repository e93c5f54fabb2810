"""The first hour of each kind of user, by the lines that a person types."""
