// A value that several parts of the page show.
import { useEffect, useReducer } from "preact/hooks";

export class Store<T> {
  #value: T;
  #listeners = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) listener();
  }

  listen(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** The store's value. The component renders again when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [, render] = useReducer((count: number) => count + 1, 0);
  useEffect(() => store.listen(() => render(undefined)), [store]);
  return store.value;
}
