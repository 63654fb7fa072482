-- Ready messages with a target, of any consumer, in lease order: a page of a queue is read from two indexes, however
-- many targets there are. Other messages are not in it and cost nothing. The condition is one that the server does not
-- conclude from `target = consumer`: a lease must not go through the messages of other consumers.

create index messages_targeted on pabal.messages (queue_id, rank, due_at, id)
  where state = 0 and octet_length(target) > 0;
