"""Requests and answers as files: a client that only writes files can use every queue of a manager."""
