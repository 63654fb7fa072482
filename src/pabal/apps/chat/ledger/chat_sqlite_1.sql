-- Users, sessions, rooms, members, invitations, messages, images, the outbox, search, settings and the audit log.
-- Times are milliseconds since the epoch.
create table chat_users (
  id text primary key,
  email text not null,
  email_key text not null unique, -- the email without regard to case
  password_hash text not null,
  created_at integer not null,
  name text not null,
  name_key text not null unique -- the name as it looks, see names.py
) strict, without rowid;

create table chat_rooms (
  id text primary key,
  name text not null,
  open integer not null,
  created_at integer not null,
  last_sequence integer not null default 0,
  last_message_id text,
  last_message_at integer,
  owner_id text references chat_users (id)
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
  search_row integer not null, -- of chat_search; 0 if it has no terms
  primary key (room_id, sequence),
  unique (room_id, sender_id, client_msg_id)
) strict;

create table chat_outbox (
  number integer primary key autoincrement,
  room_id text not null,
  event blob not null
) strict;

create table chat_sessions (
  id text primary key,
  user_id text not null references chat_users (id),
  created_at integer not null,
  seen_at integer not null,
  expires_at integer not null,
  address text not null,
  agent text not null
) strict, without rowid;
create index chat_sessions_of on chat_sessions (user_id, created_at);

create table chat_invitations (
  id text primary key,
  room_id text not null references chat_rooms (id),
  inviter_id text not null references chat_users (id),
  created_at integer not null,
  expires_at integer not null
) strict, without rowid;
create index chat_invitations_to on chat_invitations (room_id, created_at);

create table chat_removals (
  room_id text not null references chat_rooms (id),
  user_id text not null references chat_users (id),
  removed_at integer not null,
  primary key (room_id, user_id)
) strict, without rowid;

create table chat_image_rooms (
  image_id text not null,
  room_id text not null references chat_rooms (id),
  primary key (image_id, room_id)
) strict, without rowid;

create virtual table chat_search using fts5 (
  room, terms, room_id unindexed, sequence unindexed, tokenize = 'unicode61 remove_diacritics 0'
);

create table chat_settings (
  name text primary key,
  value text not null
) strict, without rowid;

create table chat_audit (
  number integer primary key autoincrement,
  at integer not null,
  actor text not null,
  act text not null,
  target text not null,
  detail text not null
) strict;
