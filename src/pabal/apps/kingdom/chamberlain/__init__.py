"""The chamberlain: measures the machine, checks the roles, cleans up, and sends alerts to people."""
