"""The core of queues: it works on the store contract and never imports a driver."""
