"""A general: takes the tasks of one domain and has a soldier work on each."""
