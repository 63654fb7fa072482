-- What was said with the last commit.
alter table topic_shares add column note text not null default '';
