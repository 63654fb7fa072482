"""The core of topics: it works on the topic store contract and never imports a driver."""
