"""The sentinel: runs the watchers of a kingdom and publishes their events."""
