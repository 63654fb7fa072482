"""Random damage to every kind of file of every embedded store, and what store, doctor and repair make of it."""
