"""Writers, checks, scene."""
