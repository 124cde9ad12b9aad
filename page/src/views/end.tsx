// Reset and delete, each with a confirmation.
import { useEffect, useState } from "preact/hooks";
import { digits } from "../logic/format.ts";
import { uuid7 } from "../logic/ids.ts";
import { shapeOf } from "../logic/shapes.ts";
import { Refused, call, send, serverNow } from "../live/api.ts";
import { pause } from "../live/connection.ts";
import { Card, Copy, Dialog, Guarded, Trouble } from "../parts/ui.tsx";
import type { Key, ResetView, Value } from "../types.ts";

type Deed = "reset" | "delete";

interface Props {
  address: Key;
  keyPath: string;
  isThere: boolean;
  /** After the key was reset or deleted. */
  onEnd: () => void;
}

const WORDS: Record<Deed, { title: string; button: string; text: string; busy: string; done: string }> = {
  reset: {
    title: "Reset this key?",
    button: "Reset",
    text: "The key is emptied, and you see the value that it had.",
    busy: "Resetting…",
    done: "It was reset. It had",
  },
  delete: {
    title: "Delete this key?",
    button: "Delete",
    text: "The key is absent until its next update, and you see the value that it had.",
    busy: "Deleting…",
    done: "It was deleted. It had",
  },
};

export function EndCard({ address, keyPath, isThere, onEnd }: Props) {
  const [asked, setAsked] = useState<Deed>();
  const [cleared, setCleared] = useState<{ deed: Deed; value: Value | null }>();
  useEffect(() => setCleared(undefined), [keyPath]);
  return (
    <Card title="Reset or delete">
      <Guarded right={`reset ${address.group}`}>
        <div class="row">
          <button type="button" disabled={!isThere} onClick={() => setAsked("reset")}>
            Reset…
          </button>
          <button type="button" class="danger" disabled={!isThere} onClick={() => setAsked("delete")}>
            Delete…
          </button>
        </div>
      </Guarded>
      <div role="status">{cleared && <Cleared {...cleared} kind={address.kind} />}</div>
      {asked && (
        <Confirm
          deed={asked}
          address={address}
          keyPath={keyPath}
          onClose={() => setAsked(undefined)}
          onDone={(value) => {
            setCleared({ deed: asked, value });
            onEnd();
            setAsked(undefined);
          }}
        />
      )}
    </Card>
  );
}

function Cleared({ deed, value, kind }: { deed: Deed; value: Value | null; kind: string }) {
  if (value === null) return <p class="note">{WORDS[deed].done} a value of more than 256 KiB, which the log does not keep.</p>;
  const isPlain = typeof value === "string" || typeof value === "number";
  return (
    <p class="note">
      {WORDS[deed].done} <strong>{isPlain ? digits(value) : shapeOf(kind).brief(value)}</strong>.{" "}
      <Copy text={isPlain ? String(value) : JSON.stringify(value)} label="Copy what it had" />
    </p>
  );
}

interface ConfirmProps {
  deed: Deed;
  address: Key;
  keyPath: string;
  onClose: () => void;
  onDone: (cleared: Value | null) => void;
}

const AGAIN_MS = 1_000;

function Confirm({ deed, address, keyPath, onClose, onDone }: ConfirmProps) {
  const [state, setState] = useState<Error | "busy">();
  // The id stays while the dialog is open: sent again, it is the same reset.
  const [id, setId] = useState(() => uuid7(serverNow()));
  const words = WORDS[deed];
  const run = async () => {
    setState("busy");
    try {
      onDone(await end(deed, keyPath, address.group, id));
    } catch (error) {
      // What was refused can be tried as a new reset.
      if (error instanceof Refused && error.problem.outcome !== "unknown") setId(uuid7(serverNow()));
      setState(error as Error);
    }
  };
  return (
    <Dialog title={words.title} onClose={onClose}>
      <p class="subject">
        {address.kind} › {address.group} › <strong>{address.name}</strong>
      </p>
      <p>{words.text}</p>
      <div role="alert">{state instanceof Error && <Trouble error={state} />}</div>
      <div class="row">
        <button type="button" class={deed === "delete" ? "danger main" : "main"} disabled={state === "busy"} onClick={run}>
          {state === "busy" ? words.busy : state instanceof Error ? "Try again" : words.button}
        </button>
        <button type="button" onClick={onClose} autofocus>
          {state === "busy" ? "Close" : "Cancel"}
        </button>
      </div>
      {state === "busy" && (
        <p class="soft" role="status">
          With Cassandra this takes about ten seconds. You can close this dialog: the{" "}
          {deed === "reset" ? "reset" : "deletion"} goes on.
        </p>
      )}
    </Dialog>
  );
}

/** What the key had. A reset that takes longer than the request is asked for until it ends. */
async function end(deed: Deed, keyPath: string, group: string, id: string): Promise<Value | null> {
  const path = deed === "reset" ? `${keyPath}/reset` : keyPath;
  const headers = { Prefer: "wait=60", "Idempotency-Key": id };
  const method = deed === "reset" ? "POST" : "DELETE";
  const answer = await send(`${path}?numbers=string`, { method, headers, needs: `reset ${group}` });
  let reset = (await answer.json()) as ResetView;
  while (reset.outcome === "accepted") {
    await pause(AGAIN_MS);
    reset = await call<ResetView>(`${keyPath}/resets/${reset.id}?numbers=string`, { needs: `reset ${group}` });
  }
  return ((reset.cleared as { value: Value } | null | undefined)?.value ?? null) as Value | null;
}
