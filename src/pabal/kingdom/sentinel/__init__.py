"""The sentinel: looks outside and turns what it sees into events."""
