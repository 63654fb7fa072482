-- Cumulative counts of each queue, by position; see `pabal.stores.counters`. A handle adds to the row of its slot, so
-- that few handles wait for each other. A publish inside a transaction of the application leaves a row of its own, with
-- a negative slot, which the next handle that counts takes into its own row.

create table pabal.counters (
  queue_id integer not null,
  slot integer not null,
  cells bigint[] not null,
  primary key (queue_id, slot)
) with (fillfactor = 50);

create function pabal.sum_cells(number integer, lowest integer, highest integer) returns bigint[] language sql as $$
  select array(
    select sum(cell)::bigint from pabal.counters, unnest(cells) with ordinality as told (cell, place)
    where queue_id = number and slot between lowest and highest group by place order by place
  )
$$;

-- Add counts to those of a queue.
create function pabal.count_up(number integer, own integer, added bigint[]) returns void language plpgsql as $$
declare
  loose record;
begin
  perform pabal.unsynced();
  insert into pabal.counters as c values (number, own, added) on conflict (queue_id, slot) do update set cells = array(
    select coalesce(cell, 0) + coalesce(extra, 0)
    from unnest(c.cells, excluded.cells) with ordinality as told (cell, extra, place) order by place
  );
  for loose in
    delete from pabal.counters as c where c.ctid = any(array(
      select o.ctid from pabal.counters as o where o.queue_id = number and o.slot < 0 limit 1000 for update skip locked
    )) returning c.cells
  loop
    update pabal.counters as c set cells[1] = c.cells[1] + loose.cells[1] where c.queue_id = number and c.slot = own;
  end loop;
end $$;
