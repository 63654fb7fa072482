-- Display names, sessions, owners of rooms, invitations, removed members, where images were posted, search, settings and the audit log.
alter table pabal.users add column name text;
alter table pabal.users add column name_key text collate "C"; -- the name as it looks, see names.py
update pabal.users set name = email, name_key = email_key; -- unique, and no chosen name has an @
alter table pabal.users alter column name set not null;
alter table pabal.users alter column name_key set not null;
create unique index users_by_name on pabal.users (name_key);

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

alter table pabal.rooms add column owner_id text collate "C" references pabal.users (id);
update pabal.rooms r set owner_id =
  (select m.user_id from pabal.room_members m where m.room_id = r.id order by m.joined_at, m.user_id limit 1);

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
insert into pabal.image_rooms select distinct content, room_id from pabal.messages where type = 'IMAGE';

alter table pabal.messages add column terms tsvector; -- null until a worker has indexed it
create index messages_by_term on pabal.messages using gin (terms) with (fastupdate = on);
create index messages_unindexed on pabal.messages (room_id, sequence) where terms is null;

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
