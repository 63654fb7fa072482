"""What every service uses: the service loop, child processes, restarts, locks, heartbeats and state files."""
