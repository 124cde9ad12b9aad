// Requests to the server that this page came from. The token is a header, never a part of an address.
import type { ProblemBody } from "../types.ts";
import { answered, unanswered } from "./connection.ts";
import { Store } from "./store.ts";

const TOKEN = "orderfree.token";

/** The token of this tab; null without one. */
export const token = new Store<string | null>(sessionStorage.getItem(TOKEN));

export function setToken(text: string | null): void {
  if (text === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, text);
  denials.set(new Map());
  asked.clear();
  token.set(text);
}

export type Verb = "read" | "write" | "reset" | "admin";

/** A right that a request needs: a verb, with its group if it has one. */
export type Right = `${Verb} ${string}` | Verb;

/** What the token may not do, and the server's reason. */
export const denials = new Store<ReadonlyMap<Right, ProblemBody>>(new Map());

/** The server's answer is a problem. */
export class Refused extends Error {
  constructor(
    readonly problem: ProblemBody,
    /** Seconds after which a retry makes sense. */
    readonly retryAfter: number | undefined,
  ) {
    super(problem.detail || problem.title);
  }

  /** The token is missing, or has no grant for this. */
  get isDenied(): boolean {
    return this.problem.status === 401 || this.problem.status === 403;
  }

  get slug(): string {
    return this.problem.type.split("/").pop() ?? "";
  }
}

/** The server did not answer. The request may have reached it. */
export class NoAnswer extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

export interface Request {
  method?: "GET" | "POST" | "DELETE";
  body?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** The right that this request needs. A denial is kept under it. */
  needs?: Right;
}

/** The answer to a request, if its status is below 400. */
export async function send(path: string, request: Request = {}): Promise<Response> {
  const headers = new Headers(request.headers);
  if (token.value !== null) headers.set("Authorization", `Bearer ${token.value}`);
  if (request.body !== undefined) headers.set("Content-Type", "application/json");
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: request.method ?? "GET",
      headers,
      body: request.body ?? null,
      signal: request.signal ?? null,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (request.signal?.aborted) throw error;
    unanswered();
    throw new NoAnswer();
  }
  answered();
  readClock(answer.headers.get("Date"));
  if (answer.ok) {
    if (request.needs) allow(request.needs);
    return answer;
  }
  const refused = await refusal(answer);
  if (request.needs && refused.isDenied) deny(request.needs, refused.problem);
  else if (request.needs) allow(request.needs);
  throw refused;
}

/** The JSON of an answer. */
export async function call<T>(path: string, request: Request = {}): Promise<T> {
  const answer = await send(path, request);
  try {
    return (await answer.json()) as T;
  } catch (error) {
    if (!request.signal?.aborted && error instanceof TypeError) {
      unanswered();
      throw new NoAnswer();
    }
    throw error;
  }
}

async function refusal(answer: Response): Promise<Refused> {
  const title = `The server answered with status ${answer.status}`;
  const other: ProblemBody = { type: "", title, status: answer.status, detail: `${title}.` };
  const isProblem = answer.headers.get("Content-Type")?.startsWith("application/problem+json");
  const problem = isProblem ? await answer.json().catch(() => other) : other;
  const seconds = Number(answer.headers.get("Retry-After") ?? NaN);
  return new Refused(problem as ProblemBody, Number.isFinite(seconds) ? seconds : undefined);
}

function deny(right: Right, problem: ProblemBody): void {
  denials.set(new Map(denials.value).set(right, problem));
}

function allow(right: Right): void {
  if (!denials.value.has(right)) return;
  const rest = new Map(denials.value);
  rest.delete(right);
  denials.set(rest);
}

const asked = new Set<Right>();

/**
 * Finds out whether the token may write to a group and reset its keys, by requests that can't change anything: an
 * update with a precondition, which the server refuses for every update, and a look at a reset that never was.
 */
export async function askForRights(group: string, keyPath: string): Promise<void> {
  if (token.value === null) return;
  const ask = async (right: Right, path: string, request: Request) => {
    if (asked.has(right)) return;
    asked.add(right);
    await send(path, { ...request, needs: right }).catch(() => undefined);
  };
  await ask(`write ${group}`, keyPath, { method: "POST", body: "{}", headers: { "If-Match": '"never"' } });
  await ask(`reset ${group}`, `${keyPath}/resets/1-00000000000000000000000000000000`, {});
}

let offset = 0;

function readClock(date: string | null): void {
  const ahead = date === null ? NaN : Date.parse(date) - Date.now();
  // The header has whole seconds.
  if (Number.isFinite(ahead)) offset = Math.abs(ahead) > 2_000 ? ahead : 0;
}

/** The server's time, to about a second. */
export function serverNow(): number {
  return Date.now() + offset;
}
