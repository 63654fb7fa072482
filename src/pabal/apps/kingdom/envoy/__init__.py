"""The envoy: talks to people, by chat, by HTTP and in the terminal."""
