"""`eddyline demo` (`make run`): the main job on real data, live."""
