"""Commands on sources."""
