"""Start-up: open, replay, losses, orphans, reshard."""
