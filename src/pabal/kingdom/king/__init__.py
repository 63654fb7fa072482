"""The King: gives events to generals and tells people what came of it, by rules alone."""
