"""The watchers of a team: what their settings in the team file mean, and how their events become mail."""
