-- Users, sessions, rooms, members, invitations, messages, images, the outbox, search, settings and the audit log.
-- Times are milliseconds since the epoch.
create table pabal.users (
  id text collate "C" primary key,
  email text not null,
  email_key text collate "C" not null unique, -- the email without regard to case
  password_hash text not null,
  created_at bigint not null,
  name text not null,
  name_key text collate "C" not null unique -- the name as it looks, see names.py
);

create table pabal.rooms (
  id text collate "C" primary key,
  name text not null,
  open boolean not null,
  created_at bigint not null,
  last_sequence bigint not null default 0,
  last_message_id text collate "C",
  last_message_at bigint,
  owner_id text collate "C" references pabal.users (id)
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
  terms tsvector not null,
  primary key (room_id, sequence),
  unique (room_id, sender_id, client_msg_id)
);

create table pabal.outbox (
  number bigint generated always as identity primary key,
  room_id text collate "C" not null,
  event bytea not null
);

create table pabal.sessions (
  id text collate "C" primary key,
  user_id text collate "C" not null references pabal.users (id),
  created_at bigint not null,
  seen_at bigint not null,
  expires_at bigint not null,
  address text not null,
  agent text not null
);
create index sessions_of on pabal.sessions (user_id, created_at);

create table pabal.invitations (
  id text collate "C" primary key,
  room_id text collate "C" not null references pabal.rooms (id),
  inviter_id text collate "C" not null references pabal.users (id),
  created_at bigint not null,
  expires_at bigint not null
);
create index invitations_to on pabal.invitations (room_id, created_at);

create table pabal.removals (
  room_id text collate "C" not null references pabal.rooms (id),
  user_id text collate "C" not null references pabal.users (id),
  removed_at bigint not null,
  primary key (room_id, user_id)
);

create table pabal.image_rooms (
  image_id text collate "C" not null,
  room_id text collate "C" not null references pabal.rooms (id),
  primary key (image_id, room_id)
);

create index messages_by_term on pabal.messages using gin (terms) with (fastupdate = on);

create table pabal.settings (
  name text primary key,
  value text not null
);

create table pabal.audit (
  number bigint generated always as identity primary key,
  at bigint not null,
  actor text not null,
  act text not null,
  target text not null,
  detail text not null
);
