"""A general: takes the tasks of one domain and starts a soldier for each."""
