create table facts (
    queue text not null,
    id text not null,
    attempt integer not null,
    type text not null default '',
    delivered_at real,
    woken_at real,
    read_at real,
    done_at real,
    wake text not null default '',
    outcome text not null default '',
    error text not null default '',
    primary key (queue, id, attempt)
) without rowid;
create index facts_by_age on facts (delivered_at);
create table agents (
    name text primary key,
    presence text not null,
    since real not null,
    busy_with text not null default '',
    pid integer,
    restarts integer not null default 0,
    beat_at real
) without rowid;
create table seen (
    key text primary key,
    at real not null
) without rowid;
