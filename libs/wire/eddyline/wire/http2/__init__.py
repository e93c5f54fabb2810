"""HTTP/2 without I/O: header blocks, frames, and the state of one connection."""
