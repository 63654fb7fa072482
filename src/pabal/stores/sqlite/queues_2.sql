-- The last message of each unique key. The key is taken as long as that message waits or is in flight: so only a publish
-- with such a key looks here, and a lease or a settlement writes nothing more.

create table unique_keys (
  queue_id integer not null,
  key text not null,
  id text not null,
  primary key (queue_id, key)
) without rowid;

create index unique_keys_id on unique_keys (queue_id, id);
