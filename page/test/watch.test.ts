import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

// What the modules need of a browser.
const stored = new Map<string, string>();
Object.assign(globalThis, {
  sessionStorage: {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => void stored.set(name, value),
    removeItem: (name: string) => void stored.delete(name),
  },
  document: { hidden: false, addEventListener() {}, removeEventListener() {} },
});

const { call, denials, setToken, NoAnswer, Refused } = await import("../src/live/api.ts");
const { connection } = await import("../src/live/connection.ts");
const { watch } = await import("../src/live/watch.ts");
type Change = import("../src/live/watch.ts").Change;
type Obstacle = import("../src/live/watch.ts").Obstacle;

const KEY = { kind: "counter", group: "a/b", name: "home" };
const realFetch = globalThis.fetch;

interface Asked {
  path: string;
  init: RequestInit;
}

/** Answers requests in turn, and keeps them. */
function serve(...answers: ((asked: Asked) => Response | Promise<Response>)[]): Asked[] {
  const all: Asked[] = [];
  globalThis.fetch = async (path, init = {}) => {
    const asked = { path: String(path), init };
    all.push(asked);
    const answer = answers[all.length - 1];
    if (!answer) return new Promise<Response>(() => {});
    return answer(asked);
  };
  return all;
}

function events(...chunks: string[]): Response {
  const body = new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(new TextEncoder().encode(chunk));
      controller.close();
    },
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

function problem(status: number, slug: string, headers: Record<string, string> = {}): Response {
  const body = { type: `/problems/${slug}`, title: slug, status, detail: `${slug}.` };
  return new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/problem+json", ...headers } });
}

/** Follows the key until `enough` is true. */
async function follow(enough: (changes: Change[], obstacles: Obstacle[]) => boolean): Promise<{ changes: Change[]; obstacles: Obstacle[] }> {
  const [changes, obstacles]: [Change[], Obstacle[]] = [[], []];
  const stop = new AbortController();
  const check = () => enough(changes, obstacles) && stop.abort();
  const late = AbortSignal.timeout(5_000);
  const onChange = (change: Change) => void (changes.push(change), check());
  const onState = (obstacle: Obstacle) => void (obstacles.push(obstacle), check());
  await watch([KEY], onChange, onState, AbortSignal.any([stop.signal, late])).catch(() => undefined);
  assert.ok(!late.aborted, "the stream gave what was awaited");
  return { changes, obstacles };
}

afterEach(() => {
  globalThis.fetch = realFetch;
  setToken(null);
});

const FAST = "retry: 1\n\n";

test("values, absent keys and problems are told apart", async () => {
  serve(() =>
    events(
      ': watching\n\ndata: {"kind":"counter","group":"a/b","name":"home","value":"5"}\nid: W/"x"\n\ndata: {"kind":"counter","gro',
      'up":"a/b","name":"home","absent":true}\n\n',
      'data: {"kind":"counter","group":"a/b","name":"home","problem":{"type":"/problems/undecodable","status":500}}\n\n',
    ),
  );
  const { changes } = await follow((all) => all.length === 3);
  assert.deepEqual(changes.map(({ type }) => type), ["value", "absent", "problem"]);
  assert.equal(changes[0]?.type === "value" && changes[0].reading.value, "5");
  assert.equal(changes[2]?.type === "problem" && changes[2].problem.type, "/problems/undecodable");
});

test("the token is a header, and neither it nor the key is in the address", async () => {
  setToken("orderfree_secret");
  const asked = serve(() => events('data: {"value":"1"}\n\n'));
  await follow((all) => all.length === 1);
  assert.equal(asked[0]?.path, "/v1/watch?numbers=string");
  assert.equal(new Headers(asked[0]?.init.headers).get("Authorization"), "Bearer orderfree_secret");
  assert.deepEqual(JSON.parse(String(asked[0]?.init.body)), { keys: [KEY] });
});

test("after the end of a stream the next one begins", async () => {
  const asked = serve(
    () => events(`${FAST}data: {"value":"1"}\n\nevent: end\ndata: {"reason":"The pod stops; connect again."}\n\n`),
    () => events(`${FAST}data: {"value":"2"}\n\n`),
  );
  const { changes } = await follow((all) => all.length === 2);
  assert.deepEqual(changes.map((change) => change.type === "value" && change.reading.value), ["1", "2"]);
  assert.equal(asked.length, 2);
});

test("a server that goes away is noticed, and the stream goes on when it is back", async () => {
  const asked = serve(
    () => Promise.reject(new TypeError("fetch failed")),
    () => Promise.reject(new TypeError("fetch failed")),
    () => new Response("{}"),
    () => events('data: {"value":"3"}\n\n'),
  );
  const before = connection.value.returns;
  const { changes } = await follow((all) => all.length === 1);
  assert.equal(changes.length, 1);
  assert.deepEqual(asked.map(({ path }) => path), ["/v1/watch?numbers=string", "/livez", "/livez", "/v1/watch?numbers=string"]);
  assert.deepEqual([connection.value.isUp, connection.value.returns], [true, before + 1]);
});

test("too many watched keys are tried again, a denied key is not", async () => {
  const asked = serve(
    () => problem(429, "too-many-watched", { "Retry-After": "0" }),
    () => events(`${FAST}data: {"value":"4"}\n\n`),
    () => problem(403, "forbidden"),
  );
  const { obstacles } = await follow((_, all) => all.at(-1) instanceof Refused && (all.at(-1) as InstanceType<typeof Refused>).isDenied);
  const slugs = obstacles.map((obstacle) => (obstacle instanceof Refused ? obstacle.slug : obstacle));
  assert.deepEqual(slugs, ["too-many-watched", undefined, "opening", "forbidden"]);
  assert.equal(asked.length, 3);
});

test("a denial is kept under its right until the token may, or is another one", async () => {
  serve(
    () => problem(403, "forbidden"),
    () => new Response("{}"),
    () => problem(401, "unauthenticated"),
  );
  await assert.rejects(call("/v1/counter/site/home", { needs: "write site" }), Refused);
  assert.equal(denials.value.get("write site")?.detail, "forbidden.");
  await call("/v1/counter/site/home", { needs: "write site" });
  assert.equal(denials.value.size, 0);
  await assert.rejects(call("/v1/counter/site/home", { needs: "write site" }), Refused);
  assert.equal(denials.value.size, 1);
  setToken("orderfree_other");
  assert.equal(denials.value.size, 0);
});

test("no answer is not a refusal", async () => {
  serve(() => Promise.reject(new TypeError("fetch failed")), () => new Response("{}"));
  await assert.rejects(call("/version"), NoAnswer);
  assert.equal(connection.value.isUp, false);
});

test("an answer that is no problem document is told by its status", async () => {
  serve(() => new Response("<html>", { status: 502, headers: { "Content-Type": "text/html" } }));
  await assert.rejects(call("/version"), (error) => error instanceof Refused && error.message === "The server answered with status 502.");
});
