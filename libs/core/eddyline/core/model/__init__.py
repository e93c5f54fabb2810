"""Topic, source, reads, deletes: values and rules."""
