-- Ready messages with a target, of any consumer, in lease order: a page of a queue is read from two indexes, however
-- many targets there are. Other messages are not in it and cost nothing.

create index if not exists messages_targeted on messages (queue_id, priority desc, due_at, id)
  where state = 0 and target <> '';
