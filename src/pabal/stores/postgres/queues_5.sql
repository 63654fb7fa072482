-- Cancel, unique keys, and leases that do not count as attempts.

-- Make waiting messages done, and with `held` those in flight; return their ids. The token of a holder is forgotten.
create function pabal.cancel(number integer, names text[], held boolean, why text) returns text[]
language plpgsql as $$
declare
  gone record;
  cancelled text[] := '{}';
begin
  perform pabal.lock_groups(number, names);
  for gone in
    update pabal.messages as m set state = 4, state_since = pabal.wall(), failure = why, document = null, token = ''
    from (select number as queue, unnest(names) as id offset 0) as told
    where m.queue_id = told.queue and m.id = told.id and (m.state + 0 in (0, 1, 3) or (held and m.state + 0 = 2))
    returning m.id, m.grp
  loop
    cancelled := cancelled || gone.id;
    if gone.grp is not null and pabal.release(number, gone.grp) then
      perform pabal.ring(array[number]);
    end if;
  end loop;
  return cancelled;
end $$;

-- The last message of each unique key. The key is taken as long as that message waits or is in flight: so only a publish
-- with such a key looks here, and a lease or a settlement writes nothing more.
create table pabal.unique_keys (
  queue_id integer not null,
  key text collate "C" not null,
  id text collate "C" not null,
  primary key (queue_id, key)
);
create index unique_keys_id on pabal.unique_keys (queue_id, id);

create function pabal.free_unique() returns trigger language plpgsql as $$
begin
  if exists (select from pabal.unique_keys) then
    delete from pabal.unique_keys as u using gone where u.queue_id = gone.queue_id and u.id = gone.id;
  end if;
  return null;
end $$;
create trigger free_unique after delete on pabal.messages referencing old table as gone
  for each statement execute function pabal.free_unique();

-- Keep the unique keys of messages from another store; a key that another message has stays with that message.
create function pabal.carry_unique(number integer, words text[], names text[]) returns void language plpgsql as $$
begin
  perform pabal.take_locks(array(select pabal.lock_of('u', number, word) from unnest(words) as word));
  insert into pabal.unique_keys as u select number, word, id from unnest(words, names) as d (word, id)
  on conflict (queue_id, key) do update set id = excluded.id where not exists (
    select from pabal.messages as m where m.queue_id = u.queue_id and m.id = u.id and m.state + 0 < 4
  );
end $$;

-- As before, and with unique keys, which the terms of a message have beside its failure.
create or replace function pabal.publish_each(
  numbers integer[], ids text[], ranks smallint[], delays double precision[], targets text[], groups text[],
  keys text[], expiries double precision[], terms jsonb, crcs bigint[], sizes integer[], documents bytea,
  at double precision
) returns text[] language plpgsql as $$
declare
  answers text[] := array_fill(null::text, array[cardinality(ids)]);
  limits bigint[] := array(select (t ->> 'max_waiting')::bigint from jsonb_array_elements(terms) as t);
  windows double precision[] := array(select (t ->> 'dedup_window')::double precision
    from jsonb_array_elements(terms) as t);
  failures text[] := array(select t ->> 'failure' from jsonb_array_elements(terms) as t);
  uniques text[] := array(select t ->> 'unique' from jsonb_array_elements(terms) as t);
  found_id text;
  enters smallint;
  most record;
  waiting bigint;
  passed integer := 0;
begin
  perform pabal.take_locks(array(
    select pabal.lock_of('g', number, grp) from unnest(numbers, groups) as d (number, grp) where grp is not null
    union all
    select pabal.lock_of('k', number, key) from unnest(numbers, keys) as d (number, key) where key is not null
    union all
    select pabal.lock_of('u', number, word) from unnest(numbers, uniques) as d (number, word) where word is not null
    union all
    select pabal.lock_of('w', number, '') from unnest(numbers, limits) as d (number, top) where top > 0
  ));
  for i in 1 .. cardinality(ids) loop
    passed := passed + sizes[i];
    select id into found_id from pabal.messages where queue_id = numbers[i] and id = ids[i];
    if not found and keys[i] is not null then
      select id into found_id from pabal.messages
        where queue_id = numbers[i] and dedup_key = keys[i] and dedup_until > at order by dedup_until desc limit 1;
    end if;
    if found_id is null and uniques[i] is not null and failures[i] is null then
      select u.id into found_id from pabal.unique_keys as u
        join pabal.messages as m on m.queue_id = u.queue_id and m.id = u.id
        where u.queue_id = numbers[i] and u.key = uniques[i] and m.state + 0 < 4;
    end if;
    if found_id is not null then
      answers[i] := found_id;
      continue;
    end if;
    enters := case when failures[i] is not null then 5 when delays[i] > 0 then 1 else 0 end;
    if enters = 0 and groups[i] is not null and exists (
      select from pabal.messages where queue_id = numbers[i] and grp = groups[i] and state < 4
    ) then
      enters := 3;
    end if;
    insert into pabal.messages
      (queue_id, state, rank, due_at, state_since, id, target, grp, dedup_key, dedup_until, expires_at,
       failure, crc, document)
    values (numbers[i], enters, ranks[i], at + delays[i], at, ids[i], targets[i], groups[i], keys[i],
      case when keys[i] is not null then at + windows[i] end, expiries[i], failures[i], crcs[i],
      substring(documents from passed - sizes[i] + 1 for sizes[i]))
    on conflict (queue_id, id) do nothing;
    if not found then
      answers[i] := ids[i];  -- another transaction was faster
    elsif uniques[i] is not null and failures[i] is null then
      insert into pabal.unique_keys as u values (numbers[i], uniques[i], ids[i])
      on conflict (queue_id, key) do update set id = excluded.id;
    end if;
  end loop;
  for most in
    select number, max(top) as top, count(*) as wanted from unnest(numbers, limits, answers) as d (number, top, first)
    where top > 0 and first is null group by number
  loop
    select count(*) into waiting from (
      select from pabal.messages where queue_id = most.number and state in (0, 1, 3) limit most.top + 1
    ) as counted;
    if waiting > most.top then
      raise exception using errcode = 'PB001', message = (select name from pabal.queues where id = most.number),
        detail = most.top || ' ' || most.wanted;
    end if;
  end loop;
  return answers;
end $$;

-- As before; a retry with a delay below 0 comes back at once, and its lease does not count as an attempt.
create or replace function pabal.settle(
  numbers integer[], ids text[], tokens text[], kinds smallint[], delays double precision[], failures text[]
) returns smallint[] language plpgsql as $$
declare
  at double precision := pabal.wall();
  applied bigint[];
  grouped boolean;
  rung integer[];
  outcomes smallint[];
begin
  -- Settled messages are in flight: if no group has live members, there is no group to lock.
  if exists (
    select from pabal.messages where queue_id = any(numbers) and grp is not null and state < 4
  ) then
    perform pabal.take_locks(array(
      select pabal.lock_of('g', m.queue_id, m.grp) from unnest(numbers, ids) as told (number, id)
      join pabal.messages as m on m.queue_id = told.number and m.id = told.id where m.grp is not null
    ));
  end if;
  -- Rows are locked in the order of their ids, so that two calls for the same messages do not deadlock.
  with changed as (
    update pabal.messages as m set
      state = case kinds[ord] when 2 then (case when delays[ord] > 0 then 1 else 0 end) when 3 then 5 else 4 end,
      state_since = at,
      due_at = case when kinds[ord] = 2 then at + greatest(delays[ord], 0) else m.due_at end,
      attempt = m.attempt - case when kinds[ord] = 2 and delays[ord] < 0 then 1 else 0 end,
      failure = case when kinds[ord] = 2 then coalesce(failures[ord], m.failure) else failures[ord] end,
      document = case when kinds[ord] = 0 then null else m.document end
    from (
      select * from unnest(numbers, ids, tokens) with ordinality as told (number, id, token, ord) order by number, id
    ) as told
    where m.queue_id = told.number and m.id = told.id and m.state + 0 = 2 and m.token = told.token
    returning ord, m.grp is not null as grouped, case when kinds[ord] = 2 then m.queue_id end as rung
  )
  select coalesce(array_agg(ord), '{}'), bool_or(changed.grouped), array_remove(array_agg(changed.rung), null)
  into applied, grouped, rung from changed;
  if grouped then
    rung := rung || pabal.regroup(numbers, ids, kinds, applied);
  end if;
  if cardinality(rung) > 0 then
    perform pabal.ring(rung);
  end if;
  if cardinality(applied) = cardinality(ids) then
    return array_fill(0::smallint, array[cardinality(ids)]);
  end if;
  select array_agg(
    case
      when told.ord = any(applied) then 0
      when m.token = told.token and case told.kind
        when 2 then m.state in (0, 1, 3) when 3 then m.state = 5 else m.state = 4 end then 1
      else 2
    end order by told.ord
  ) into outcomes
  from unnest(numbers, ids, tokens, kinds) with ordinality as told (number, id, token, kind, ord)
  left join pabal.messages as m on m.queue_id = told.number and m.id = told.id;
  return outcomes;
end $$;
