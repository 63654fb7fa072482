-- Queues and their messages.
--
-- state        0 ready, 1 delayed, 2 inflight, 3 held (ready, but not the first of its group), 4 done, 5 dead, 6 corrupt
-- state_since  when the message came into this state
-- lease_until  for a message in flight, the reading of the boot clock at which its lease ends
-- token        of the last lease; kept after the settlement, so that a repeated verdict is recognized
-- document     a blob is the document itself, a text the name of its file; null when only a tombstone is left
-- crc          of the document, so that damage is found when the message is leased
--
-- State, lease_until and token keep their width from state to state, so that a lease overwrites a row in place. That is
-- why their defaults are as wide as real values.

create table queues (
  id integer primary key,
  name text not null unique collate nocase,
  settings text
);

create table messages (
  seq integer primary key,
  queue_id integer not null references queues (id),
  state integer not null,
  attempt integer not null default 0,
  priority integer not null,
  due_at real not null,
  state_since real not null,
  lease_until real not null default -0.5,
  token text not null default '////////////////',
  id text not null,
  target text not null default '',
  grp text,
  dedup_key text,
  dedup_until real,
  expires_at real,
  failure text,
  crc integer,
  document
);

create unique index messages_id on messages (queue_id, id);
create index messages_ready on messages (queue_id, target, priority desc, due_at, id) where state = 0;
create index messages_delayed on messages (queue_id, due_at) where state = 1;
create index messages_inflight on messages (queue_id, lease_until, token) where state = 2;
create index messages_aside on messages (queue_id, state, state_since) where state > 2;
create index messages_group on messages (queue_id, grp) where grp is not null and state < 4;
create index messages_group_inflight on messages (queue_id, grp) where grp is not null and state = 2;
create index messages_dedup on messages (queue_id, dedup_key, dedup_until) where dedup_key is not null;
create index messages_expiring on messages (queue_id, expires_at)
  where expires_at is not null and state <> 2 and state < 4;

-- Ready messages with a target, of any consumer, in lease order: a page of a queue is read from two indexes, however
-- many targets there are. Other messages are not in it and cost nothing.

create index messages_targeted on messages (queue_id, priority desc, due_at, id)
  where state = 0 and target <> '';

-- The last message of each unique key. The key is taken as long as that message waits or is in flight: so only a publish
-- with such a key looks here, and a lease or a settlement writes nothing more.

create table unique_keys (
  queue_id integer not null,
  key text not null,
  id text not null,
  primary key (queue_id, key)
) without rowid;

create index unique_keys_id on unique_keys (queue_id, id);

-- Files of settled or removed messages, to be removed after a synced commit.
create table orphaned_files (
  seq integer primary key,
  name text not null
);

-- The same data in the words of the original database, for its readers: JSON inside JSON as text, times in milliseconds.
-- Where the document is a file, its name stands for the payload.
create view msg_index as
select
  queues.name as queue,
  case state
    when 0 then 'ready' when 1 then 'delayed' when 2 then 'inflight' when 3 then 'ready'
    when 4 then 'archived' when 5 then 'dlq' else 'corrupt'
  end as state,
  priority,
  cast(due_at * 1000 as integer) as available_at,
  case when state = 2
    then cast((lease_until + (select value from meta where key = 'booted_at')) * 1000 as integer)
  end as lease_until,
  attempt,
  'msg:' || queues.name || ':' || messages.id as message_key,
  case when state = 5 then coalesce(nullif(failure ->> '$.reason', ''), failure ->> '$.code') end as dlq_reason,
  case when state = 5 then cast(state_since * 1000 as integer) end as dlq_at,
  target as target_consumer_id,
  cast(expires_at * 1000 as integer) as expired_at
from messages join queues on queues.id = messages.queue_id;

create view kv as
select
  'msg:' || queues.name || ':' || messages.id as key,
  json_object(
    'messageId', messages.id,
    'queue', queues.name,
    'payload', coalesce(iif(json_valid(body), body -> '$.payload', body), 'null') || '',
    'attributes', coalesce(iif(json_valid(body), body -> '$.attributes', null), '{}') || '',
    'priority', priority,
    'attempt', attempt,
    'createdAt', coalesce(created_at, cast(due_at * 1000 as integer))
  ) as value,
  'message' as value_type,
  coalesce(created_at, cast(due_at * 1000 as integer)) as created_at,
  cast(iif(state = 2, due_at, state_since) * 1000 as integer) as updated_at,
  cast(expires_at * 1000 as integer) as expires_at
from (
  select
    *,
    cast(document as text) as body,
    iif(
      typeof(document) = 'blob' and json_valid(cast(document as text)),
      cast(round(unixepoch(cast(document as text) ->> '$.timestamp', 'subsec') * 1000) as integer),
      null
    ) as created_at
  from messages
) as messages join queues on queues.id = messages.queue_id
union all
select 'policy:' || name, settings, 'policy', 0, 0, null from queues where settings is not null;
