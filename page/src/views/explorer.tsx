// Kinds, the groups of a kind, and the keys of a group with their values.
import { useCallback, useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { cut, plural } from "../logic/format.ts";
import { type Route, path, toGroup, toKey } from "../logic/route.ts";
import { shapeOf } from "../logic/shapes.ts";
import { call, token } from "../live/api.ts";
import { connection } from "../live/connection.ts";
import { useStore } from "../live/store.ts";
import { type Change, useWatch } from "../live/watch.ts";
import { Trouble } from "../parts/ui.tsx";
import { WindowList } from "../parts/window-list.tsx";
import type { Entry, GroupsView, KindView } from "../types.ts";

interface Props {
  kinds: KindView[];
  route: Route;
}

export function Explorer({ kinds, route }: Props) {
  const [lastKind, setLastKind] = useState("counter");
  const kind = "kind" in route ? route.kind : lastKind;
  useEffect(() => setLastKind(kind), [kind]);
  const group = "group" in route ? route.group : undefined;
  const known = kinds.map(({ kind: name }) => name);
  const names = known.includes(kind) ? known : [kind, ...known];
  return (
    <nav class="explorer" aria-label="Keys" onKeyDown={enterList}>
      <label class="field">
        Kind
        <select value={kind} onChange={(event) => (location.hash = toGroup(event.currentTarget.value))}>
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      {group === undefined ? (
        <Groups key={kind} kind={kind} />
      ) : (
        <Keys key={`${kind} ${group}`} kind={kind} group={group} current={"name" in route ? route.name : undefined} />
      )}
    </nav>
  );
}

/** The down arrow leads from a field into the list below it. */
function enterList(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  if (event.key !== "ArrowDown" || !(event.target instanceof HTMLInputElement)) return;
  event.preventDefault();
  event.currentTarget.querySelector<HTMLElement>(".window a[tabindex='0']")?.focus();
}

const GROUPS_AT_ONCE = 1_000;

function Groups({ kind }: { kind: string }) {
  const [text, setText] = useState("");
  const load = useCallback(
    async (cursor: string | null, signal: AbortSignal) => {
      const from = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
      const { groups, next } = await call<GroupsView>(`/v1/${kind}?limit=${GROUPS_AT_ONCE}${from}`, { signal });
      return { items: groups, next: next ?? null };
    },
    [kind],
  );
  const pages = usePages(load);
  const shown = pages.items.filter((group) => group.includes(text)).sort();
  const open = (event: Event) => {
    event.preventDefault();
    if (text !== "") location.hash = toGroup(kind, text);
  };
  return (
    <>
      <form onSubmit={open}>
        <label class="field">
          Group
          <input value={text} placeholder="type to filter or to open" onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      </form>
      {pages.error && <Trouble error={pages.error}>You can still type a group.</Trouble>}
      {text !== "" && !shown.includes(text) && <Open href={toGroup(kind, text)} text={text} />}
      <WindowList
        label={`Groups of ${kind}`}
        count={shown.length}
        row={(index) => {
          const group = shown[index] ?? "";
          return { href: toGroup(kind, group), isCurrent: false, content: <span class="name">{group}</span> };
        }}
        onNearEnd={pages.more}
      />
      <p class="soft count">
        {pages.isBusy ? "Loading…" : shown.length === 0 && !pages.error ? `No group of this kind${text ? " matches" : " yet"}.` : plural(shown.length, "group")}
      </p>
    </>
  );
}

/** So many that a page is parsed within a frame. */
const KEYS_AT_ONCE = 300;
const LARGE_KEYS_AT_ONCE = 50;
const RENDER_MS = 150;

interface GroupPage {
  keys: Entry[];
  next: string | null;
}

function Keys({ kind, group, current }: { kind: string; group: string; current: string | undefined }) {
  const [prefix, setPrefix] = useState("");
  const [visible, setVisible] = useState<string[]>([]);
  const [, render] = useReducer((count: number) => count + 1, 0);
  const later = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const shape = shapeOf(kind);
  const load = useCallback(
    async (cursor: string | null, signal: AbortSignal) => {
      const query = new URLSearchParams({ numbers: "string" });
      query.set("limit", String(shape.isLarge && !shape.hasItems ? LARGE_KEYS_AT_ONCE : KEYS_AT_ONCE));
      // Sets say their size without their items if they are asked for one item.
      if (shape.hasItems) query.set("contains", "-");
      if (kind === "histogram") query.set("q", "0.5");
      if (prefix !== "") query.set("prefix", prefix);
      if (cursor !== null) query.set("cursor", cursor);
      const page = await call<GroupPage>(`/v1/${path(kind, group)}?${query}`, { signal, needs: `read ${group}` });
      return { items: page.keys, next: page.next };
    },
    [kind, group, prefix],
  );
  const pages = usePages(load);
  const byName = useMemo(() => new Map(pages.items.map((entry) => [entry.name, entry])), [pages.items]);

  const onChange = (change: Change) => {
    if (change.type !== "value") return;
    const entry = byName.get(change.reading.name);
    if (!entry) return;
    entry.value = change.reading.value;
    delete entry.problem;
    // Many keys can change at once.
    later.current ??= setTimeout(() => {
      later.current = undefined;
      render(undefined);
    }, RENDER_MS);
  };
  useEffect(() => () => clearTimeout(later.current), []);
  // Large values would come whole with each change.
  useWatch(shape.isLarge ? [] : visible.map((name) => ({ kind, group, name })), onChange);

  const names = pages.items;
  const isUnknown = prefix !== "" && !pages.isBusy && !byName.has(prefix);
  return (
    <>
      <p class="where">
        <a href={toGroup(kind)}>Groups</a> <span aria-hidden="true">›</span> <strong>{group}</strong>
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (prefix !== "") location.hash = toKey({ kind, group, name: prefix });
        }}
      >
        <label class="field">
          Names that begin with
          <input value={prefix} placeholder="all" onInput={(event) => setPrefix(event.currentTarget.value)} />
        </label>
      </form>
      {pages.error && <Trouble error={pages.error} />}
      {isUnknown && <Open href={toKey({ kind, group, name: prefix })} text={prefix} />}
      <WindowList
        label={`Keys of ${group}`}
        count={names.length}
        row={(index) => {
          const entry = names[index] as Entry;
          const content = (
            <>
              <span class="name" title={entry.name}>
                {entry.name}
              </span>
              <span class="value">{brief(kind, entry)}</span>
            </>
          );
          return { href: toKey({ kind, group, name: entry.name }), isCurrent: entry.name === current, content };
        }}
        onNearEnd={pages.more}
        onVisible={(first, last) => setVisible(names.slice(first, last).map(({ name }) => name))}
      />
      <p class="soft count">
        {names.length === 0 && pages.isBusy
          ? "Loading…"
          : names.length === 0 && !pages.error
            ? `No key${prefix ? " matches" : " yet"}.`
            : `${plural(names.length, "key")}${pages.hasMore ? ", more below" : ""}`}
      </p>
    </>
  );
}

const BRIEF_MAX = 40;

function brief(kind: string, entry: Entry): string {
  if (entry.problem) return entry.problem.title;
  if (entry.value === undefined) return "";
  return cut(shapeOf(kind).brief(entry.value), BRIEF_MAX);
}

function Open({ href, text }: { href: string; text: string }) {
  return (
    <a class="open" href={href}>
      Open “{text}” <kbd>Enter</kbd>
    </a>
  );
}

interface Pages<T> {
  items: T[];
  hasMore: boolean;
  isBusy: boolean;
  error: Error | undefined;
  more: () => void;
}

/** Pages that are loaded one after the other. Another `load`, another token and a server that came back begin again. */
function usePages<T>(load: (cursor: string | null, signal: AbortSignal) => Promise<{ items: T[]; next: string | null }>): Pages<T> {
  const [, render] = useReducer((count: number) => count + 1, 0);
  const { returns } = useStore(connection);
  const credentials = useStore(token);
  const state = useRef<Pages<T>>({ items: [], hasMore: true, isBusy: true, error: undefined, more: () => {} });
  useEffect(() => {
    const stop = new AbortController();
    let cursor: string | null = null;
    let isBusy = false;
    const show = (change: Partial<Pages<T>>) => {
      state.current = { ...state.current, ...change };
      render(undefined);
    };
    const more = async () => {
      if (isBusy || (!state.current.hasMore && cursor === null)) return;
      isBusy = true;
      const isFirst = cursor === null;
      try {
        const { items, next } = await load(cursor, stop.signal);
        cursor = next;
        isBusy = false;
        const all = isFirst ? items : state.current.items.concat(items);
        show({ items: all, hasMore: next !== null, isBusy: false, error: undefined });
        // A page of groups can be empty although others follow.
        if (items.length === 0 && next !== null) void more();
      } catch (error) {
        if (stop.signal.aborted) return;
        isBusy = false;
        show({ error: error as Error, hasMore: false, isBusy: false, ...(isFirst ? { items: [] } : {}) });
      }
    };
    state.current = { ...state.current, hasMore: true, isBusy: true, error: undefined, more: () => void more() };
    render(undefined);
    // Letters that are typed fast make one request.
    const timer = setTimeout(() => void more(), 120);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [load, returns, credentials]);
  return state.current;
}
