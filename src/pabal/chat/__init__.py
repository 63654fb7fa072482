"""Chat: a gateway takes messages into a topic, a worker stores each once, every gateway tells its members."""
