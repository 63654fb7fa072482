"""The Kingdom: events come in, generals have soldiers work on them, people are asked and told."""
