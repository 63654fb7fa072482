"""The kingdom: events come in, soldiers of generals work on them, and people get questions and results."""
