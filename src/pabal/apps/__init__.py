"""The three applications on top of the library: ignite, kingdom and chat. None imports another."""
