"""Databases below the drivers: opening, committing, migrating, and the translation of their errors."""
