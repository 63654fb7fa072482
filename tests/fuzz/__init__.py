"""Every reader of text or bytes that others write, fed with inputs made from a corpus by changing it."""
