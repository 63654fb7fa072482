"""Queues over plain HTTP: for languages without a client of SQS, and for the dashboard."""
