-- The partitions of a topic have the numbers base, base + 1, …
create table topics (
    id integer primary key,
    name text not null unique collate nocase,
    base integer not null,
    partitions integer not null,
    max_age real not null,
    max_bytes integer not null,
    settings text not null default '{}'
) strict;

-- Records from first_offset up to next_offset are there. last_at keeps times rising when the clock steps back.
create table topic_partitions (
    id integer primary key,
    first_offset integer not null default 0,
    next_offset integer not null default 0,
    last_at real not null default 0,
    bytes integer not null default 0
) strict;

-- The id is partition << 40 | offset: one tree, appended to at the end of each partition, read in order.
create table topic_records (
    id integer primary key,
    at real not null,
    key blob,
    value blob not null,
    headers blob,
    crc integer not null
) strict;

-- The generation rises whenever somebody comes, goes or gives up a partition.
create table topic_groups (
    id integer primary key,
    topic integer not null,
    name text not null,
    generation integer not null default 0,
    unique (topic, name)
) strict;

-- The deadline is a reading of the boot clock of the boot named beside it.
create table topic_members (
    id integer primary key autoincrement,
    grp integer not null,
    name text not null,
    boot text not null,
    deadline real not null
) strict;
create index topic_members_by_group on topic_members (grp);

-- The epoch is the fence: it rises whenever a partition gets or loses its owner. The note came with the last commit.
create table topic_shares (
    grp integer not null,
    partition integer not null,
    committed integer not null default 0,
    owner integer,
    epoch integer not null default 0,
    note text not null default '',
    primary key (grp, partition)
) strict, without rowid;
