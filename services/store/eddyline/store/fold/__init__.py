"""Live values: interface, RocksDB, memory."""
