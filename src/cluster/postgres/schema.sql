-- Stores of onehold: keys with revisions and leases, and one function that does what a request asks for.
-- Made by `onehold doctor --create`; it may be run again. The numbers of the version are here and in `messages.rs`.
create schema if not exists onehold;
-- What another role made before would be used with the rights of this one.
set local search_path = pg_catalog, pg_temp;
do $$ declare other record; begin
    select * into other from (
        select nspowner, 'schema onehold' from pg_namespace where nspname = 'onehold'
        union all select relowner, relname from pg_class where relnamespace = 'onehold'::regnamespace
        union all select proowner, proname from pg_proc where pronamespace = 'onehold'::regnamespace
        union all select typowner, typname from pg_type where typnamespace = 'onehold'::regnamespace
        union all select oprowner, oprname from pg_operator where oprnamespace = 'onehold'::regnamespace
    ) one(owner, name) where pg_get_userbyid(owner) <> current_user limit 1;
    if found then
        raise exception using errcode = 'OH003', message = format(
            '`%s` belongs to role `%s`, not to `%s`', other.name, pg_get_userbyid(other.owner), current_user);
    end if;
end $$;
set local search_path = onehold, pg_temp;
create table if not exists version (number int not null);
do $$ begin
    if exists (select from version where number > 1) then
        raise exception using errcode = 'OH001', message = 'the schema is of a newer version';
    end if;
    delete from version;
    insert into version values (1);
end $$;

-- Whoever changes a store locks its row first, so revisions are in order of commit. `looked` is when leases were looked
-- at last; none ends before `ends`. `epoch`: which server wrote last.
create table if not exists store (
    prefix text collate "C" primary key, revision bigint not null, looked timestamptz not null, ends timestamptz,
    epoch text not null
) with (fillfactor = 20);
create table if not exists lease (
    id bigint primary key, prefix text collate "C" not null, ttl interval not null, expires timestamptz not null
) with (fillfactor = 50);
-- When somebody began to wait for one of its keys.
alter table lease add column if not exists watched timestamptz;
create index if not exists lease_prefix on lease (prefix);
create table if not exists item (
    prefix text collate "C" not null, key text collate "C" not null, value text collate "C" not null,
    created bigint not null, modified bigint not null, lease bigint, primary key (prefix, key)
) with (fillfactor = 50);
create index if not exists item_lease on item (lease) where lease is not null;
-- Which role may use which stores: this prefix and all below it.
create table if not exists rights (role name, prefix text collate "C", primary key (role, prefix));
insert into rights values (current_user, '') on conflict do nothing;

create or replace function channel(name text) returns text language sql immutable as
    $$ select 'onehold_' || to_hex(hashtextextended(name, 0)) $$;

-- The end of a range; one without an end is one key.
create or replace function high(range jsonb) returns text language sql immutable as
    $$ select coalesce(nullif(range->>'end', ''), (range->>'start') || chr(1)) $$;

-- A condition. All keys of its range agree. An empty range is one key that is not there: its numbers are 0, and it has
-- no value.
create or replace function holds(p text, c jsonb) returns boolean language plpgsql stable as $$
declare what text; than text; relation text := c->>'relation'; low text := c#>>'{range,start}'; begin
    select * into what, than from jsonb_each_text(c->'target');
    if what = 'Value' then
        return coalesce((select case relation when 'Equal' then value = than when 'Less' then value < than
            else value > than end from item where prefix = p and key = low), false);
    end if;
    return (with number(n) as (
            select case what when 'Created' then created when 'Modified' then modified else coalesce(lease, 0) end
            from item where prefix = p and key >= low and key < high(c->'range'))
        select bool_and(case relation when 'Equal' then n = than::bigint when 'Less' then n < than::bigint
            else n > than::bigint end)
        from (select n from number union all select 0 where not exists (select from number)) i);
end $$;

-- What a read finds. Nothing that is over; only the present revision is there. So a limit counts only for keys of lines
-- about holds that have ended, of which nobody reads the rest later.
create or replace function found(p text, r bigint, o jsonb) returns json language plpgsql stable as $$ begin
    if (o->>'revision')::bigint not in (0, r) then
        raise exception using errcode = 'OH002', message = 'the store has changed since';
    end if;
    return (select coalesce(json_agg(json_build_array(key, case when o->>'keys_only' = 'true' then '' else value end,
            created, modified, coalesce(lease, 0)) order by key), '[]')
        from (select * from item where prefix = p and key >= o#>>'{range,start}' and key < high(o->'range')
            and (lease is null or exists (
                select from lease l where l.id = item.lease and l.expires > clock_timestamp()))
            order by key limit case when o->>'keys_only' = 'true' and starts_with(o#>>'{range,start}', p || '//past/')
                then nullif((o->>'limit')::bigint, 0) end) one);
end $$;

-- Deletes keys of a range, or those of leases. Whoever waits for one of them is told. Whether there was any. Each role
-- can listen: of values, only the number of a hold is told.
create or replace function deleted(p text, r bigint, low text, high text, leases bigint[]) returns boolean
language plpgsql as $$
declare gone item; told text; any_gone boolean := false; begin
    for gone in delete from item where prefix = p and ((leases is null and key >= low and key < high) or lease = any(leases))
        returning * loop
        any_gone := true;
        -- Nobody waits for a line about a hold that has ended. A payload of 8000 bytes is an error.
        continue when starts_with(gone.key, p || '//past/');
        told := json_build_array(gone.key, r, case when gone.value ~ '^[0-9]{16}$' then gone.value end);
        if octet_length(told) < 8000 then
            perform pg_notify(channel(gone.key), told);
        end if;
    end loop;
    delete from lease where prefix = p and id = any(leases);
    return any_gone;
end $$;

-- The system and the timeline of the log that is written. It fails on a replica.
create or replace function epoch() returns text language sql stable as $$
    select system_identifier || '/' || ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
    from pg_control_system() $$;

-- `v`: the version of the caller. `p`: the prefix. `q`: what is to be done, all under one lock:
-- {reads} alone, as of one moment; else any of {grant: [id, seconds]}, {keep: id}, {revoke: id}, {left: id},
-- {if, then, else}, and {wait: [keys], pid}, which listens if the connection has this backend for itself. It does not
-- wait for the store for longer than its caller does: one commit that lasts would collect the backends of all requests.
create or replace function request(v int, p text, q jsonb) returns json
language plpgsql security definer set search_path = onehold, pg_temp set lock_timeout = '2s' as $$
declare
    s store; old store; t timestamptz; what text; o jsonb; answers json[] := '{}'; is_true boolean := true;
    kept int; time_left interval; listens boolean; did boolean; ends json;
begin
    if v <> 1 then
        raise exception using errcode = 'OH001', message = 'the schema is of version 1, and onehold of ' || v;
    end if;
    if pg_is_in_recovery() then
        raise exception using errcode = 'OH005', message = 'a replica';
    end if;
    if not exists (select from rights join pg_roles on rolname = role where pg_has_role(session_user, pg_roles.oid, 'member')
        and (p = rights.prefix or starts_with(p, rights.prefix || '/'))) then
        raise exception using errcode = 'OH003', message = format('role `%s` has no right to `%s`', session_user, p);
    end if;
    if q ? 'reads' then
        -- One statement has one snapshot.
        return (select json_build_object('rev', r, 'epoch', epoch(), 'ok', true, 'answers',
                coalesce((select json_agg(found(p, r, o.value->'Read') order by n) from jsonb_array_elements(q->'reads') with ordinality o(value, n)), '[]'))
            from (select coalesce((select revision from store where prefix = p), 1) as r) one);
    end if;
    select * into s from store where prefix = p for update;
    if not found then
        insert into store values (p, 1, clock_timestamp(), null, epoch()) on conflict do nothing;
        select * into s from store where prefix = p for update;
    end if;
    t := clock_timestamp();
    old := s;
    s.epoch := epoch();
    if t >= s.ends or t < s.looked then
        -- If the clock was set back, no lease lasts longer than from now on.
        update lease set expires = t + ttl where prefix = p and expires > t + ttl;
        s.revision := s.revision + deleted(p, s.revision + 1, null, null,
            array(select id from lease where prefix = p and expires <= t))::int;
        s.looked := t;
        s.ends := (select min(expires) from lease where prefix = p);
    end if;
    if q ? 'grant' then
        time_left := make_interval(secs => (q->'grant'->>1)::bigint);
        insert into lease values ((q->'grant'->>0)::bigint, p, time_left, t + time_left);
        s.ends := least(s.ends, t + time_left);
        s.looked := t;
    end if;
    if q ? 'keep' then
        update lease set expires = t + ttl where prefix = p and id = (q->>'keep')::bigint
            returning extract(epoch from ttl), watched > t - interval '5min' into kept, did;
        s.looked := t;
        if did then
            -- Whoever waits for its end need not ask whether it has ended.
            perform pg_notify(channel(key), json_build_array(key, kept)::text)
                from item where lease = (q->>'keep')::bigint;
        end if;
    end if;
    if q ? 'revoke' then
        s.revision := s.revision + deleted(p, s.revision + 1, null, null, array[(q->>'revoke')::bigint])::int;
    end if;
    if q ? 'left' then
        time_left := (select expires - t from lease where prefix = p and id = (q->>'left')::bigint);
    end if;
    if q ? 'then' then
        for o in select * from jsonb_array_elements(q->'if') loop
            is_true := holds(p, o);
            exit when not is_true;
        end loop;
        did := false;
        for what, o in select kind, argument from jsonb_array_elements(q->(case when is_true then 'then' else 'else' end))
            one(operation), jsonb_each(operation) of(kind, argument) loop
            if what = 'Read' then
                answers := answers || found(p, s.revision + did::int, o);
                continue;
            elsif what = 'Delete' then
                did := deleted(p, s.revision + 1, o->>'start', high(o), null) or did;
            else
                if o->>'lease' <> '0' and not exists (select from lease where prefix = p and id = (o->>'lease')::bigint) then
                    raise exception using errcode = 'OH004', message = 'there is no such lease';
                end if;
                insert into item values (p, o->>'key', o->>'value', s.revision + 1, s.revision + 1,
                        nullif((o->>'lease')::bigint, 0))
                    on conflict (prefix, key) do update
                    set value = excluded.value, modified = excluded.modified, lease = excluded.lease;
                did := true;
            end if;
            answers := answers || json '[]';
        end loop;
        s.revision := s.revision + did::int;
    end if;
    if q ? 'wait' then
        listens := pg_backend_pid() = (q->>'pid')::int;
        for o in select * from jsonb_array_elements(q->'wait') loop
            if listens then
                execute format('listen %I', channel(coalesce(o#>>'{}', p)));
            end if;
            answers := answers || found(p, s.revision, jsonb_build_object('revision', 0, 'keys_only', true,
                'range', jsonb_build_object('start', o, 'end', '')));
        end loop;
        time_left := s.ends - t;
        update lease set watched = t from item where item.lease = lease.id and item.prefix = p
            and item.key in (select jsonb_array_elements_text(q->'wait'));
        ends := (select json_agg(json_build_array(key, ceil(extract(epoch from expires - t) * 1000)::bigint))
            from item join lease on lease.id = item.lease
            where item.prefix = p and key in (select jsonb_array_elements_text(q->'wait')));
    end if;
    if s is distinct from old then
        update store set revision = s.revision, looked = s.looked, ends = s.ends, epoch = s.epoch where prefix = p;
    end if;
    if s.revision > old.revision then
        perform pg_notify(channel(p), '');
    end if;
    return json_build_object('rev', s.revision, 'epoch', s.epoch, 'ok', is_true, 'answers', to_json(answers), 'kept', kept,
        'left_ms', ceil(extract(epoch from time_left) * 1000)::bigint, 'listens', listens, 'ends', ends);
end $$;

-- Lets a role use the stores with this prefix and below it.
create or replace function allow(role name, prefix text) returns void language plpgsql
set search_path = onehold, pg_temp as $$ begin
    execute format('grant usage on schema onehold to %I', role);
    execute format('grant execute on function onehold.request(int, text, jsonb) to %I', role);
    insert into rights values (role, rtrim(prefix, '/')) on conflict do nothing;
end $$;
revoke all on all functions in schema onehold from public;
