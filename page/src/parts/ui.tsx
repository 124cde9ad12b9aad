// Small parts that all views use.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { NoAnswer, Refused, type Right, denials } from "../live/api.ts";
import { useStore } from "../live/store.ts";
import type { ProblemBody } from "../types.ts";

interface CardProps {
  title: string;
  /** What stands to the right of the title. */
  aside?: ComponentChildren;
  children: ComponentChildren;
  className?: string;
}

export function Card({ title, aside, children, className = "" }: CardProps) {
  const id = useId();
  return (
    <section class={`card ${className}`} aria-labelledby={id}>
      <header class="card-head">
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

/** Why something went wrong, with the page of its problem type. */
export function Trouble({ error, children }: { error: Error; children?: ComponentChildren }) {
  if (error instanceof Refused) return <ProblemNote problem={error.problem}>{children}</ProblemNote>;
  return (
    <p class="note bad">
      {error instanceof NoAnswer ? "The server does not answer. The page tries again." : error.message} {children}
    </p>
  );
}

export function ProblemNote({ problem, children }: { problem: ProblemBody; children?: ComponentChildren }) {
  const reason = denialOf(problem);
  if (reason) return <p class="note reason">{reason}</p>;
  return (
    <p class="note bad">
      {problem.title && <strong>{problem.title}. </strong>}
      {problem.detail} {problem.type.startsWith("/problems/") && <a href={problem.type}>What to do</a>} {children}
    </p>
  );
}

/** Why the token may not do this; undefined if it may, or if that is not known yet. */
export function useDenial(right: Right): string | undefined {
  const all = useStore(denials);
  // Without a valid token, a server that has tokens refuses every request.
  const problem = all.get(right) ?? missingToken(all);
  return problem && denialOf(problem);
}

/** The server's demand for a token, if it has answered a request with one. */
export function missingToken(all: ReadonlyMap<Right, ProblemBody>): ProblemBody | undefined {
  return [...all.values()].find(({ status }) => status === 401);
}

/** Why the token may not do something; undefined for other problems. */
function denialOf({ status, detail }: ProblemBody): string | undefined {
  return status === 401 ? "This needs a token." : status === 403 ? detail : undefined;
}

interface GuardedProps {
  right: Right;
  children: ComponentChildren;
}

/** Controls that are grey, with the reason, if the token may not use them. */
export function Guarded({ right, children }: GuardedProps) {
  const denial = useDenial(right);
  const id = useId();
  return (
    <fieldset class="plain" disabled={denial !== undefined} aria-describedby={denial ? id : undefined}>
      {children}
      {denial && (
        <p class="note reason" id={id}>
          {denial}
        </p>
      )}
    </fieldset>
  );
}

const COPIED_MS = 1_500;

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setCopied(false), COPIED_MS);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const copy = () => copyText(text).then(setCopied);
  return (
    <button type="button" class="small" onClick={copy}>
      <span aria-live="polite">{isCopied ? "Copied" : label}</span>
    </button>
  );
}

async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  // Browsers have no clipboard for pages without TLS beyond localhost.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog. The browser keeps the focus inside, and closes it with Escape. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose}>
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

interface TabsProps<T extends string> {
  label: string;
  all: readonly T[];
  chosen: T;
  onChoose: (choice: T) => void;
}

/** A choice of a few words. Arrow keys move it, as in any group of radio buttons. */
export function Choice<T extends string>({ label, all, chosen, onChoose }: TabsProps<T>) {
  const name = useId();
  return (
    <fieldset class="plain choice">
      <legend class="hidden">{label}</legend>
      {all.map((choice) => (
        <label key={choice}>
          <input type="radio" name={name} checked={choice === chosen} onChange={() => onChoose(choice)} />
          <span>{choice}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Digits that light up for a moment where they changed. */
export function Ticking({ text }: { text: string }) {
  const before = useRef(text);
  const turns = useRef<number[]>([]);
  if (before.current !== text) {
    const [old, count] = [before.current, text.length];
    // Digits are compared from the right: a number grows at the left.
    turns.current = [...text].map((char, index) => {
      const fromRight = count - index;
      const turn = turns.current[old.length - fromRight] ?? 0;
      return old[old.length - fromRight] === char ? turn : turn + 1;
    });
    before.current = text;
  }
  return (
    <>
      <span class="hidden">{text}</span>
      <span aria-hidden="true">
        {[...text].map((char, index) => {
          const fromRight = text.length - index;
          const turn = turns.current[index] ?? 0;
          const isSign = /[,.]/.test(char);
          return (
            <span key={`${fromRight} ${turn}`} class={isSign ? "sign" : turn > 0 ? "turned" : undefined}>
              {char}
            </span>
          );
        })}
      </span>
    </>
  );
}
