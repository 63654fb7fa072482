"""The chat, on both of its sets: embedded (SQLite for topics and database) and servers (Kafka and PostgreSQL)."""
