// An op of a key, from a form, and the same op for a shell and programs.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock } from "../logic/format.ts";
import { uuid7 } from "../logic/ids.ts";
import { fieldsOf, isJson, labelOf, opText } from "../logic/ops.ts";
import { LANGUAGES, type Language, snippet } from "../logic/snippets.ts";
import { NoAnswer, Refused, call, serverNow, token } from "../live/api.ts";
import { useStore } from "../live/store.ts";
import { Card, Choice, Copy, Guarded, ProblemNote } from "../parts/ui.tsx";
import type { Key, KindView, UpdateView } from "../types.ts";

interface Props {
  address: Key;
  keyPath: string;
  kind: KindView;
  /** After an acknowledged update. */
  onAcked?: () => void;
  label?: string;
}

const MODES = ["Form", "JSON"] as const;

type Outcome = { is: "acked"; at: string } | { is: "busy" } | { is: "problem"; error: Error };

export function AddCard(props: Props) {
  const { address, kind } = props;
  const draft = useDraft(kind);
  return (
    <>
      <Card title="Update" aside={<Choice label="Input" all={MODES} chosen={draft.mode} onChoose={draft.setMode} />}>
        <UpdateForm {...props} draft={draft} />
      </Card>
      <SnippetCard address={address} op={draft.shown} />
    </>
  );
}

interface Draft {
  mode: (typeof MODES)[number];
  setMode: (mode: (typeof MODES)[number]) => void;
  typed: Record<string, string>;
  type: (name: string, text: string) => void;
  json: string;
  setJson: (text: string) => void;
  /** The op as JSON, or why there is none. */
  op: () => string;
  /** The op for snippets: the example where the form has no op yet. */
  shown: string;
}

export function useDraft(kind: KindView): Draft {
  const example = kind.example_op as Record<string, unknown>;
  const fields = fieldsOf(example);
  const first = () => Object.fromEntries(fields.map(({ name, input, example: text }) => [name, input === "json" || input === "number" || input === "decimal" ? text : ""]));
  const [mode, setMode] = useState<(typeof MODES)[number]>("Form");
  const [typed, setTyped] = useState<Record<string, string>>(first);
  const [json, setJson] = useState(() => opText(example, Object.fromEntries(fields.map(({ name, example: text }) => [name, text]))));
  const op = () => (mode === "JSON" ? json : opText(example, typed));
  const shown = useMemo(() => {
    const filled = Object.fromEntries(fields.map(({ name, example: text }) => [name, typed[name] || text]));
    try {
      return mode === "JSON" ? (isJson(json) ? json : JSON.stringify(example)) : opText(example, filled);
    } catch {
      return opText(example, Object.fromEntries(fields.map(({ name, example: text }) => [name, text])));
    }
  }, [mode, json, typed]);
  return { mode, setMode, typed, type: (name, text) => setTyped({ ...typed, [name]: text }), json, setJson, op, shown };
}

export function UpdateForm({ address, keyPath, kind, onAcked, draft, label = "Send" }: Props & { draft: Draft }) {
  const [outcome, setOutcome] = useState<Outcome>();
  // An update keeps its id until it is acknowledged or certainly not counted, so that sending it again is safe.
  const pending = useRef<{ id: string; op: string } | undefined>(undefined);
  useEffect(() => setOutcome(undefined), [keyPath]);
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      const op = draft.op();
      if (pending.current?.op !== `${keyPath} ${op}`) pending.current = { id: uuid7(serverNow()), op: `${keyPath} ${op}` };
      setOutcome({ is: "busy" });
      await call<UpdateView>(keyPath, {
        method: "POST",
        body: op,
        // A kind that takes the same op twice as once needs no id, and its ids are refused for a minute after a reset.
        headers: kind.idempotent ? {} : { "Idempotency-Key": pending.current.id },
        needs: `write ${address.group}`,
      });
      pending.current = undefined;
      setOutcome({ is: "acked", at: clock(Date.now()) });
      onAcked?.();
    } catch (error) {
      const isRefused = error instanceof Refused && error.problem.outcome !== "unknown";
      const isOver = error instanceof Refused && ["id-expired", "id-before-reset"].includes(error.slug);
      if (isRefused || isOver) pending.current = undefined;
      setOutcome({ is: "problem", error: error as Error });
    }
  };
  return (
    <form onSubmit={submit}>
      <Guarded right={`write ${address.group}`}>
        {draft.mode === "JSON" ? (
          <label class="field">
            An op, or a list of ops: {'{"ops":[…]}'}
            <textarea class="code" rows={4} spellcheck={false} value={draft.json} onInput={(event) => draft.setJson(event.currentTarget.value)} />
          </label>
        ) : (
          fieldsOf(kind.example_op as Record<string, unknown>).map(({ name, input, example }) => {
            const field = {
              value: draft.typed[name] ?? "",
              placeholder: example,
              spellcheck: false,
              onInput: (event: { currentTarget: { value: string } }) => draft.type(name, event.currentTarget.value),
            };
            return (
              <label class="field" key={name}>
                {labelOf(name)}
                {input === "lines" || input === "json" ? (
                  <textarea class={input === "json" ? "code" : ""} rows={3} {...field} />
                ) : (
                  <input inputMode={input === "text" ? "text" : "decimal"} autocomplete="off" {...field} />
                )}
              </label>
            );
          })
        )}
        <div class="row">
          <button class="main" disabled={outcome?.is === "busy"}>
            {label}
          </button>
          <span role="status" class="soft">
            {outcome?.is === "acked" && <span class="good">✓ acked at {outcome.at}</span>}
            {outcome?.is === "busy" && "…"}
          </span>
        </div>
      </Guarded>
      <div role="alert">{outcome?.is === "problem" && <OutcomeNote error={outcome.error} />}</div>
    </form>
  );
}

function OutcomeNote({ error }: { error: Error }) {
  if (error instanceof Refused) {
    const isUnknown = error.problem.outcome === "unknown";
    return (
      <ProblemNote problem={error.problem}>
        {isUnknown && error.slug !== "id-expired" ? "It may be counted. Send it again: with the same id it counts once." : "It is not counted."}
      </ProblemNote>
    );
  }
  if (error instanceof NoAnswer) {
    return <p class="note bad">No answer: the update may be counted. Send it again: with the same id it counts once.</p>;
  }
  return <p class="note bad">{error.message}</p>;
}

function SnippetCard({ address, op }: { address: Key; op: string }) {
  const [language, setLanguage] = useState<Language>("curl");
  const needsToken = useStore(token) !== null;
  const text = snippet(language, location.origin, address, op, needsToken);
  return (
    <Card title="Copy as" aside={<Copy text={text} />}>
      <Choice label="Language" all={LANGUAGES} chosen={language} onChoose={setLanguage} />
      <pre class="code" role="group" tabIndex={0} aria-label={`The update and a read in ${language}`}>
        {text}
      </pre>
    </Card>
  );
}
