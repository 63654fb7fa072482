-- Messages that agents and people got. A message to several of them has one row.
create table messages (
  number integer primary key,
  id text not null unique,           -- without the number of a copy
  thread text not null,
  sender text not null,
  recipients text not null,          -- one name per line
  type text not null,
  priority integer not null,
  subject text not null,
  body text not null,                -- JSON
  at real not null,
  in_reply_to text not null default ''
);
create index messages_by_thread on messages (thread, at);
create index messages_by_age on messages (at);
-- The words of each message, as `words_of` cuts them; its rowid is the number of the message. The tokenizer only
-- separates them at the spaces: it takes every other character as it is.
create virtual table words using fts5 (subject, body, content = '', contentless_delete = 1,
  tokenize = 'ascii');
