"""How a role serves."""
