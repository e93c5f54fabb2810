"""Resume checks, resyncs and audits: is it still the same stream, and does the fold agree with it?"""
