-- The consumers that lease; see `pabal.stores.consumers`. A token begins with the tag of its consumer, 5 characters.

create table pabal.consumers (
  tag text collate "C" primary key,
  name text not null,
  host text not null,
  pid integer not null,
  since double precision not null,
  seen double precision not null
);

-- Keep a consumer; of one that is kept, only note when it was seen.
create function pabal.see_consumer(its_tag text, its_name text, its_host text, its_pid integer)
returns void language plpgsql as $$
begin
  perform pabal.unsynced();
  insert into pabal.consumers values (its_tag, its_name, its_host, its_pid, pabal.wall(), pabal.wall())
  on conflict (tag) do update set seen = excluded.seen;
end $$;

-- Remove the consumers that were not seen for so many seconds and hold no message.
create function pabal.forget_consumers(age double precision) returns void language plpgsql as $$
begin
  perform pabal.unsynced();
  delete from pabal.consumers as c where c.seen <= pabal.wall() - age
    and not exists (select from pabal.messages as m where m.state = 2 and left(m.token, 5) = c.tag);
end $$;

-- Remove a queue with its settings and messages; return by state how many messages there were that are not done. If
-- there are any, nothing is changed without `force`. Its row stays: other sessions know the number.
create function pabal.delete_queue(number integer, force boolean) returns text language plpgsql as $$
declare
  counts jsonb;
  left_groups text[];
  word text;
begin
  perform pabal.lock_groups(number, array(
    select m.id from pabal.messages as m where m.queue_id = number and m.grp is not null and m.state < 4
  ));
  select coalesce(jsonb_object_agg(state, many), '{}') into counts from (
    select m.state, count(*) as many from pabal.messages as m where m.queue_id = number and m.state <> 4 group by 1
  ) as told;
  if counts <> '{}' and not force then
    return counts;
  end if;
  with gone as (
    delete from pabal.messages as m where m.queue_id = number and (force or m.state = 4) returning m.grp
  )
  select array_agg(distinct grp) filter (where grp is not null) into left_groups from gone;
  foreach word in array coalesce(left_groups, '{}') loop
    perform pabal.release(number, word);
  end loop;
  update pabal.queues set settings = null where id = number;
  insert into pabal.meta values ('deleted.' || number, '1') on conflict (key) do nothing;
  perform pabal.ring(array[number]);
  return counts;
end $$;
