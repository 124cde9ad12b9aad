// The first page: the keys that are updated most, and how to begin.
import { useState } from "preact/hooks";
import { digits } from "../logic/format.ts";
import { path, toKey } from "../logic/route.ts";
import { call } from "../live/api.ts";
import { usePolled } from "../live/polled.ts";
import { Card, Copy, Trouble } from "../parts/ui.tsx";
import type { Hottest, Key, KindView } from "../types.ts";
import { UpdateForm, useDraft } from "./add.tsx";
import { DemoPanel } from "./demo.tsx";

const EVERY_MS = 2_000;
const HOTTEST = 20;

export function KeysPage({ kinds, isDemo }: { kinds: KindView[]; isDemo: boolean }) {
  const hottest = usePolled((signal) => call<Hottest>(`/v1/hottest?limit=${HOTTEST}`, { signal }), EVERY_MS, []);
  const keys = hottest.data?.keys;
  const isQuiet = keys !== undefined && keys.length === 0;
  return (
    <>
      <h1 class="hidden" tabIndex={-1}>
        Keys
      </h1>
      {isDemo && <DemoPanel />}
      {hottest.error && !keys && (
        <Card title="Hottest keys">
          <Trouble error={hottest.error} />
        </Card>
      )}
      {keys && keys.length > 0 && <HottestCard keys={keys} />}
      {kinds.length > 0 && <StartCard kinds={kinds} isQuiet={isQuiet && !isDemo} />}
    </>
  );
}

function HottestCard({ keys }: Hottest) {
  const most = Math.max(1e-9, ...keys.map((key) => key.ops_per_second));
  return (
    <Card title="Hottest keys" aside={<span class="soft">ops per second on this pod</span>}>
      <table class="bars">
        <thead class="hidden">
          <tr>
            <th scope="col">Key</th>
            <th scope="col">Bar</th>
            <th scope="col">Ops per second</th>
          </tr>
        </thead>
        <tbody>
          {keys.map((key) => (
            <tr key={path(key.kind, key.group, key.name)}>
              <th scope="row" class="name">
                <a href={toKey(key)}>
                  <span class="soft">
                    {key.kind} › {key.group} ›{" "}
                  </span>
                  {key.name}
                </a>
              </th>
              <td class="track">
                <span class="bar" style={{ width: `${(100 * key.ops_per_second) / most}%` }} />
              </td>
              <td class="number">{key.ops_per_second < 100 ? key.ops_per_second.toFixed(1) : digits(Math.round(key.ops_per_second))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}

function StartCard({ kinds, isQuiet }: { kinds: KindView[]; isQuiet: boolean }) {
  const [address, setAddress] = useState<Key>({ kind: "counter", group: "site", name: "home" });
  const kind = kinds.find(({ kind: name }) => name === address.kind);
  const url = `${location.origin}/v1/counter/site/home`;
  const curls: [string, string][] = [
    ["Add one", `curl -X POST ${url}`],
    ["Read it", `curl ${url}`],
    ["See why it is that number", `curl ${url}/shards`],
  ];
  const set = (change: Partial<Key>) => setAddress({ ...address, ...change });
  return (
    <Card title="Count something" className="start">
      {isQuiet && <p class="lead">No key of this pod gets updates at the moment. Choose a key on the left, or create one here.</p>}
      <div class="halves">
        <div>
          <div class="address">
            <label class="field">
              Kind
              <select value={address.kind} onChange={(event) => set({ kind: event.currentTarget.value })}>
                {kinds.map(({ kind: name }) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
            <label class="field">
              Group
              <input value={address.group} onInput={(event) => set({ group: event.currentTarget.value })} />
            </label>
            <label class="field">
              Name
              <input value={address.name} onInput={(event) => set({ name: event.currentTarget.value })} />
            </label>
          </div>
          {kind && <p class="soft">{kind.summary}</p>}
          {kind && address.group !== "" && address.name !== "" && <First key={kind.kind} kind={kind} address={address} />}
        </div>
        <div>
          {curls.map(([what, command]) => (
            <div class="try" key={what}>
              <p>{what}</p>
              <Copy text={command} />
              <pre class="code" role="group" tabIndex={0} aria-label={what}>
                {command}
              </pre>
            </div>
          ))}
        </div>
      </div>
    </Card>
  );
}

function First({ kind, address }: { kind: KindView; address: Key }) {
  const draft = useDraft(kind);
  const keyPath = `/v1/${path(address.kind, address.group, address.name)}`;
  return (
    <UpdateForm
      address={address}
      keyPath={keyPath}
      kind={kind}
      draft={draft}
      label="Send, and open the key"
      onAcked={() => (location.hash = toKey(address))}
    />
  );
}

