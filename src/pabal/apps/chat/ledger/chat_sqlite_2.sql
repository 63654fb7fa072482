-- Display names, sessions, owners of rooms, invitations, removed members, where images were posted, search, settings and the audit log.
alter table chat_users add column name text not null default '';
alter table chat_users add column name_key text not null default ''; -- the name as it looks, see names.py
update chat_users set name = email, name_key = email_key; -- unique, and no chosen name has an @
create unique index chat_users_by_name on chat_users (name_key);

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

alter table chat_rooms add column owner_id text references chat_users (id);
update chat_rooms set owner_id =
  (select m.user_id from chat_room_members m where m.room_id = chat_rooms.id order by m.joined_at, m.user_id limit 1);

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
insert into chat_image_rooms select distinct content, room_id from chat_messages where type = 'IMAGE';

alter table chat_messages add column search_row integer; -- of chat_search; null until a worker has indexed it
create index chat_messages_unindexed on chat_messages (room_id, sequence) where search_row is null;
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
