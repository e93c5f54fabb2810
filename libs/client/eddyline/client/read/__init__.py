"""Log and fold reads."""
