"""The manager: one process that owns a data root, serves its mailbox and sweeps its queues."""
