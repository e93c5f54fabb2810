"""From the store's FollowTopics streams to encoded frames: tails, rings, encoding, dispatch."""
