"""Drivers of the topic contract: one file on this machine, or Apache Kafka."""
