"""The chamberlain: measures the machine, watches the roles, cleans up, and tells people what they should know."""
