"""The coordinator's bookkeeping: tasks, calls for help, proposals and progress, as decisions over one database."""
