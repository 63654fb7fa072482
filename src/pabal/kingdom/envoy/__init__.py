"""The envoy: the one that speaks to people, by chat, by HTTP and in the terminal."""
