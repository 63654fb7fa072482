"""The coordinator: tasks, requests for help, proposals and progress, as decisions over one database."""
