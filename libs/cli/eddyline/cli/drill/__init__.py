"""`eddyline drill`: fault drills on a cluster of its own."""
