-- Settle, revive, purge, set aside, and take in messages from another store.

-- Lock the groups of these messages.
create function pabal.lock_groups(number integer, names text[]) returns void language plpgsql as $$
begin
  perform pabal.take_locks(array(
    select pabal.lock_of('g', number, m.grp) from (select number as queue, unnest(names) as id) as told
    join pabal.messages as m on m.queue_id = told.queue and m.id = told.id where m.grp is not null
  ));
end $$;

-- Apply each verdict whose token is current, with its follow-ups. Kinds: 0 done, 1 done and kept, 2 retry, 3 dead.
-- The answer has 0 for applied, 1 for repeated, 2 for lost. No message may occur twice.
create function pabal.settle(
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
      due_at = case when kinds[ord] = 2 then at + delays[ord] else m.due_at end,
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

-- Apply plain acks of one queue under one token: the usual call, with fewer arguments. The answer is null if all were
-- applied.
create function pabal.ack(number integer, names text[], under text) returns smallint[] language plpgsql as $$
declare
  most integer := cardinality(names);
  at double precision := pabal.wall();
  applied integer;
begin
  if exists (select from pabal.messages where queue_id = number and grp is not null and state < 4) then
    return pabal.settle(array_fill(number, array[most]), names, array_fill(under, array[most]),
      array_fill(0::smallint, array[most]), array_fill(0::double precision, array[most]), array_fill(null::text, array[most]));
  end if;
  update pabal.messages as m set state = 4, state_since = at, failure = null, document = null
  from (select number as queue, unnest(names) as id order by id) as told
  where m.queue_id = told.queue and m.id = told.id and m.state + 0 = 2 and m.token = under;
  get diagnostics applied = row_count;
  if applied = most then
    return null;
  end if;
  -- A row written by this transaction was applied above.
  return array(
    select case
      when m.token = under and m.state = 4 then (case when m.xmin = pg_current_xact_id()::xid then 0 else 1 end)
      else 2
    end
    from (select number as queue, * from unnest(names) with ordinality as told (id, ord) offset 0) as told
    left join pabal.messages as m on m.queue_id = told.queue and m.id = told.id order by told.ord
  );
end $$;

-- After verdicts: let the first member of each group come, which may be one that came back, once none is in flight.
create function pabal.regroup(numbers integer[], ids text[], kinds smallint[], applied bigint[]) returns integer[]
language plpgsql as $$
declare
  member record;
  rung integer[] := '{}';
begin
  for member in
    select told.kind, m.queue_id, m.id, m.grp, m.state
    from unnest(numbers, ids, kinds) with ordinality as told (number, id, kind, ord)
    join pabal.messages as m on m.queue_id = told.number and m.id = told.id
    where told.ord = any(applied) and m.grp is not null order by told.ord
  loop
    if member.state = 0 then
      update pabal.messages as m set state = 3
      where m.queue_id = member.queue_id and m.id = member.id and m.state = 0;
    end if;
    if pabal.release(member.queue_id, member.grp) then
      rung := rung || member.queue_id;
    end if;
  end loop;
  return rung;
end $$;

-- Set aside messages that cannot be read, if the token still holds them.
create function pabal.set_aside(number integer, names text[], under text, states smallint[], failures text[])
returns integer language plpgsql as $$
declare
  member record;
  changed integer := 0;
begin
  perform pabal.lock_groups(number, names);
  for member in
    update pabal.messages as m set state = told.state, state_since = pabal.wall(), failure = told.failure
    from (select number as queue, * from unnest(names, states, failures) as told (id, state, failure) offset 0) as told
    where m.id = told.id and m.queue_id = told.queue
      and ((m.state = 2 and m.token = under) or (under = '' and m.state in (0, 1, 3, 5)))
    returning m.grp
  loop
    changed := changed + 1;
    if member.grp is not null and pabal.release(number, member.grp) then
      perform pabal.ring(array[number]);
    end if;
  end loop;
  return changed;
end $$;

-- Make dead messages ready; each joins its group at the end.
create function pabal.revive(number integer, names text[]) returns text[] language plpgsql as $$
declare
  at double precision := pabal.wall();
  dead record;
  revived text[] := '{}';
begin
  perform pabal.lock_groups(number, names);
  for dead in
    select m.id, m.grp from (select number as queue, * from unnest(names) with ordinality as told (id, ord) offset 0) as told
    join pabal.messages as m on m.queue_id = told.queue and m.id = told.id
    where m.state + 0 = 5 order by told.ord for update of m
  loop
    update pabal.messages as m set
      seq = case when dead.grp is null then m.seq else nextval(pg_get_serial_sequence('pabal.messages', 'seq')) end,
      state = case when dead.grp is not null and exists (
        select from pabal.messages as o where o.queue_id = number and o.grp = dead.grp and o.state < 4
      ) then 3 else 0 end,
      attempt = 0, due_at = at, state_since = at, token = '', failure = null, expires_at = null
    where m.queue_id = number and m.id = dead.id and m.state = 5;
    if found then
      revived := revived || dead.id;
    end if;
  end loop;
  if cardinality(revived) > 0 then
    perform pabal.ring(array[number]);
  end if;
  return revived;
end $$;

-- Remove messages that have been in one of these states for `age` seconds; with `names`, of these only.
create function pabal.purge(number integer, among smallint[], age double precision, most integer, names text[])
returns integer language plpgsql as $$
declare
  before double precision := case when age > 0 then pabal.wall() - age else 'infinity' end;
  chosen text[];
  left_groups text[];
  word text;
  removed integer;
begin
  if names is null then
    -- `state > 2` selects the index of settled messages: finding old ones costs the same however many there are.
    chosen := array(
      select unnest(array(
        select m.id from pabal.messages as m
        where m.queue_id = number and m.state = s and m.state > 2 and m.state_since <= before limit most
      ) || array(
        select m.id from pabal.messages as m
        where m.queue_id = number and m.state = s and s <= 2 and m.state_since <= before limit most
      )) from unnest(among) as s limit most
    );
  else
    chosen := array(
      select m.id from (select number as queue, unnest(names) as id) as told
      join pabal.messages as m on m.queue_id = told.queue and m.id = told.id
      where m.state = any(among) and m.state_since <= before limit most
    );
  end if;
  if chosen = '{}' then
    return 0;
  end if;
  perform pabal.lock_groups(number, chosen);
  with gone as (
    delete from pabal.messages as m where m.ctid = any(array(
      select c.ctid from (select number as queue, unnest(chosen) as id) as told
      join pabal.messages as c on c.queue_id = told.queue and c.id = told.id
      where c.state = any(among) for update of c skip locked
    )) returning m.grp
  )
  select count(*), array_agg(distinct grp) filter (where grp is not null) into removed, left_groups from gone;
  foreach word in array coalesce(left_groups, '{}') loop
    if pabal.release(number, word) then
      perform pabal.ring(array[number]);
    end if;
  end loop;
  return removed;
end $$;

-- Apply a retention: as purge, but only what was too old at a look at least `pause` seconds ago as well. So a clock of
-- the server that jumped ahead for a moment removes nothing.
create function pabal.trim(
  number integer, among smallint[], age double precision, most integer, pause double precision
) returns integer language plpgsql as $$
declare
  at double precision := pabal.wall();
  reading double precision := pabal.steady();
  look record;
  removed integer;
begin
  select l.wall, l.steady into look from pabal.looks as l where l.queue_id = number and l.state = among[1];
  if look.wall > at then
    delete from pabal.looks as l where l.queue_id = number and l.state = among[1];
  end if;
  if not exists (
    select from unnest(among) as s where exists (
      select from pabal.messages as m
      where m.queue_id = number and m.state = s and m.state > 2 and m.state_since <= at - age
    ) or exists (
      select from pabal.messages as m
      where m.queue_id = number and m.state = s and s <= 2 and m.state_since <= at - age
    )
  ) then
    return 0;
  end if;
  if look.wall is null or look.wall > at then
    insert into pabal.looks values (number, among[1], at, reading) on conflict do nothing;
    return 0;
  end if;
  if reading - look.steady < pause then
    return 0;
  end if;
  removed := pabal.purge(number, among, pabal.wall() - look.wall + age, most, null);
  if removed < most then
    update pabal.looks as l set wall = at, steady = reading where l.queue_id = number and l.state = among[1];
  end if;
  return removed;
end $$;

-- Take in messages of another store. Ids that exist here are skipped; the answer has the others. `dues` and `expiries`
-- are instants of the client's clock, which showed `asked_at` at the call.
create function pabal.carry(
  number integer, ids text[], states smallint[], attempts integer[], ranks smallint[], dues double precision[],
  targets text[], groups text[], keys text[], expiries double precision[], failures text[], crcs bigint[],
  sizes integer[], documents bytea, keep double precision, asked_at double precision
) returns text[] language plpgsql as $$
declare
  at double precision := pabal.wall();
  taken text[] := '{}';
  enters smallint;
  passed integer := 0;
begin
  dues := pabal.shifted(dues, at - asked_at);
  expiries := pabal.shifted(expiries, at - asked_at);
  perform pabal.take_locks(array(
    select pabal.lock_of('g', number, grp) from unnest(groups) as grp where grp is not null
    union all select pabal.lock_of('k', number, key) from unnest(keys) as key where key is not null
  ));
  for i in 1 .. cardinality(ids) loop
    passed := passed + coalesce(sizes[i], 0);
    enters := states[i];
    if enters = 0 and groups[i] is not null and exists (
      select from pabal.messages where queue_id = number and grp = groups[i] and state < 4
    ) then
      enters := 3;
    end if;
    insert into pabal.messages (queue_id, state, rank, attempt, due_at, state_since, id, target, grp, dedup_key, dedup_until,
      expires_at, failure, crc, document)
    values (number, enters, ranks[i], attempts[i], dues[i], at, ids[i], targets[i], groups[i], keys[i],
      case when keys[i] is not null then at + keep end, expiries[i], failures[i], crcs[i],
      substring(documents from passed - sizes[i] + 1 for sizes[i]))
    on conflict (queue_id, id) do nothing;
    if found then
      taken := taken || ids[i];
    end if;
  end loop;
  if cardinality(taken) > 0 then
    perform pabal.ring(array[number]);
  end if;
  return taken;
end $$;

-- Apply verdicts and publish, in the same step, the follow-ups of those that were applied: `places` has the position of
-- the verdict of each follow-up.
create function pabal.settle_then(
  numbers integer[], ids text[], tokens text[], kinds smallint[], delays double precision[], failures text[],
  places integer[], then_numbers integer[], then_ids text[], then_ranks smallint[], then_delays double precision[],
  then_targets text[], then_groups text[], then_keys text[], then_expiries double precision[], then_terms jsonb,
  then_crcs bigint[], then_sizes integer[], then_documents bytea, asked_at double precision
) returns smallint[] language plpgsql as $$
declare
  outcomes smallint[];
  next record;
begin
  perform pabal.take_locks(array(
    select pabal.lock_of('g', m.queue_id, m.grp) from unnest(numbers, ids) as told (number, id)
    join pabal.messages as m on m.queue_id = told.number and m.id = told.id where m.grp is not null
    union all
    select pabal.lock_of('g', number, grp) from unnest(then_numbers, then_groups) as d (number, grp) where grp is not null
    union all
    select pabal.lock_of('k', number, key) from unnest(then_numbers, then_keys) as d (number, key) where key is not null
  ));
  outcomes := pabal.settle(numbers, ids, tokens, kinds, delays, failures);
  select array_agg(number order by ord) as numbers, array_agg(id order by ord) as ids,
    array_agg(rank order by ord) as ranks, array_agg(delay order by ord) as delays,
    array_agg(target order by ord) as targets, array_agg(grp order by ord) as groups,
    array_agg(key order by ord) as keys, array_agg(expiry order by ord) as expiries,
    case when then_terms is not null then jsonb_agg(then_terms -> (ord - 1)::integer order by ord) end as terms,
    array_agg(crc order by ord) as crcs, array_agg(size order by ord) as sizes,
    string_agg(substring(then_documents from (past - size + 1)::integer for size), ''::bytea order by ord) as documents
  into next
  from (
    select *, sum(size) over (order by ord) as past
    from unnest(places, then_numbers, then_ids, then_ranks, then_delays, then_targets, then_groups, then_keys,
      then_expiries, then_crcs, then_sizes) with ordinality
      as draft (place, number, id, rank, delay, target, grp, key, expiry, crc, size, ord)
  ) as draft
  where outcomes[place] = 0;
  if next.ids is not null then
    perform pabal.publish(next.numbers, next.ids, next.ranks, next.delays, next.targets, next.groups, next.keys,
      next.expiries, next.terms, next.crcs, next.sizes, next.documents, asked_at);
  end if;
  return outcomes;
end $$;
