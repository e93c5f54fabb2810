"""The commands of `eddyline`, in the groups that its help has."""
