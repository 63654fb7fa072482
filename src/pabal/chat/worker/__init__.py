"""The worker: stores each message once and tells all gateways. Any number of them may run at once."""
