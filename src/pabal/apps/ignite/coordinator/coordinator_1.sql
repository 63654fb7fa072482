-- The coordinator's records. `thread` separates two lists that use the same task ids.
create table tasks (
  thread text not null,
  task_id text not null,
  place integer not null,              -- the order of the list
  title text not null,
  status text not null default 'queued' check (status in ('queued', 'in_progress', 'completed', 'failed')),
  priority text not null default 'normal',
  assigned_to text not null default '',
  delegated_by text not null default '',
  repository text not null default '',
  issue_number text not null default '',
  dependencies text not null default '[]',
  work text not null,                  -- the task as the list gave it
  result text,                         -- what its worker reported last
  tries integer not null default 0,
  started_at real not null default 0,
  touched_at real not null default 0,  -- the last sign of life from its worker
  completed_at real not null default 0,
  primary key (thread, task_id)
) without rowid;

create index tasks_open on tasks (status, assigned_to) where status in ('queued', 'in_progress');

create table helps (thread text not null, task_id text not null, help_type text not null, at real not null,
  primary key (thread, task_id, help_type)) without rowid;

create table proposals (thread text not null, task_id text not null, severity text not null, title text not null,
  decision text not null, at real not null, primary key (thread, task_id)) without rowid;

-- The decision on a message: a message that comes again gets the same answer.
create table decisions (message_id text primary key, outgoing text not null, at real not null) without rowid;

-- Messages that follow from time alone, until they are sent.
create table outbox (id text primary key, message text not null) without rowid;

create table reports (at real not null);                          -- when progress was reported
create table unreported (thread text primary key) without rowid;  -- threads whose report is held back
