"""The King: dispatches events to generals and reports their results to people, by rules alone."""
