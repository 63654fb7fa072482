-- Users, rooms, members, messages, outbox. Times are milliseconds since the epoch.
create table chat_users (
  id text primary key,
  email text not null,
  email_key text not null unique, -- the email without regard to case
  password_hash text not null,
  created_at integer not null
) strict, without rowid;

create table chat_rooms (
  id text primary key,
  name text not null,
  open integer not null,
  created_at integer not null,
  last_sequence integer not null default 0,
  last_message_id text,
  last_message_at integer
) strict, without rowid;

create table chat_room_members (
  room_id text not null references chat_rooms (id),
  user_id text not null references chat_users (id),
  joined_at integer not null,
  last_read_sequence integer not null,
  primary key (room_id, user_id)
) strict, without rowid;
create index chat_rooms_of on chat_room_members (user_id, room_id);

create table chat_messages (
  room_id text not null references chat_rooms (id),
  sequence integer not null,
  id text not null unique,
  sender_id text not null references chat_users (id),
  client_msg_id text not null,
  type text not null,
  content text not null,
  created_at integer not null,
  primary key (room_id, sequence),
  unique (room_id, sender_id, client_msg_id)
) strict;

create table chat_outbox (
  number integer primary key autoincrement,
  room_id text not null,
  event blob not null
) strict;
