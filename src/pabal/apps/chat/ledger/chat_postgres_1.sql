-- Users, rooms, members, messages, outbox. Times are milliseconds since the epoch.
create table pabal.users (
  id text collate "C" primary key,
  email text not null,
  email_key text collate "C" not null unique, -- the email without regard to case
  password_hash text not null,
  created_at bigint not null
);

create table pabal.rooms (
  id text collate "C" primary key,
  name text not null,
  open boolean not null,
  created_at bigint not null,
  last_sequence bigint not null default 0,
  last_message_id text collate "C",
  last_message_at bigint
) with (fillfactor = 70);

create table pabal.room_members (
  room_id text collate "C" not null references pabal.rooms (id),
  user_id text collate "C" not null references pabal.users (id),
  joined_at bigint not null,
  last_read_sequence bigint not null,
  primary key (room_id, user_id)
) with (fillfactor = 70);
create index rooms_of on pabal.room_members (user_id, room_id);

create table pabal.messages (
  room_id text collate "C" not null references pabal.rooms (id),
  sequence bigint not null,
  id text collate "C" not null unique,
  sender_id text collate "C" not null references pabal.users (id),
  client_msg_id text collate "C" not null,
  type text not null,
  content text not null,
  created_at bigint not null,
  primary key (room_id, sequence),
  unique (room_id, sender_id, client_msg_id)
);

create table pabal.outbox (
  number bigint generated always as identity primary key,
  room_id text collate "C" not null,
  event bytea not null
);
