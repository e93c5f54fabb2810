"""Tails, rings, frames, dispatch."""
