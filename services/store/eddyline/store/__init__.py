"""The store: write-ahead log, segments, RocksDB fold, and the services that read and write them."""
