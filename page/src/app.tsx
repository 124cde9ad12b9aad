// The page: head, explorer, and the view of the address.
import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "./logic/format.ts";
import { type Route, parse, toKey } from "./logic/route.ts";
import { call, denials, token } from "./live/api.ts";
import { connection } from "./live/connection.ts";
import { usePolled } from "./live/polled.ts";
import { useHealth, useLastMinute, useVersion } from "./live/sampler.ts";
import { useStore } from "./live/store.ts";
import { missingToken } from "./parts/ui.tsx";
import type { KindView } from "./types.ts";
import { Explorer } from "./views/explorer.tsx";
import { Head } from "./views/head.tsx";
import { InstallationPage } from "./views/installation.tsx";
import { KeyView } from "./views/key.tsx";
import { KeysPage } from "./views/keys.tsx";
import { TokenDialog } from "./views/token.tsx";

export function App() {
  const route = useRoute();
  const minute = useLastMinute();
  const health = useHealth();
  const version = useVersion().data;
  const kinds = usePolled((signal) => call<{ kinds: KindView[] }>("/v1/kinds", { signal, needs: "read" }), null, []).data?.kinds ?? [];
  const main = useRef<HTMLElement>(null);
  useFocusOnRoute(route, main.current);
  const kindOf = (name: string) => kinds.find(({ kind }) => kind === name);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to the content
      </a>
      <Head page={route.page} version={version} minute={minute} health={health} />
      <Banner />
      <div class={`body ${route.page}`}>
        {route.page !== "installation" && <Explorer kinds={kinds} route={route} />}
        <main id="main" ref={main} tabIndex={-1}>
          {route.page === "installation" ? (
            <InstallationPage minute={minute} health={health} />
          ) : route.page === "key" ? (
            <KeyView key={toKey(route)} address={route} kind={kindOf(route.kind)} />
          ) : (
            <KeysPage kinds={kinds} isDemo={version?.store === "demo"} />
          )}
        </main>
      </div>
    </>
  );
}

function useRoute(): Route {
  const [fragment, setFragment] = useState(location.hash);
  useEffect(() => {
    const change = () => setFragment(location.hash);
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  const route = parse(fragment);
  useEffect(() => {
    const title = route.page === "key" ? route.name : route.page === "installation" ? "Installation" : "group" in route ? route.group : "Keys";
    document.title = `${title} · Orderfree`;
  }, [fragment]);
  return route;
}

/** After a step to another key, a screen reader begins at its heading. Steps within the list keep the focus there. */
function useFocusOnRoute(route: Route, main: HTMLElement | null): void {
  const name = route.page === "key" ? toKey(route) : route.page;
  const before = useRef(name);
  useEffect(() => {
    if (before.current === name) return;
    before.current = name;
    if (document.activeElement?.closest(".window")) return;
    main?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
  }, [name]);
}

/** The fragment is the address of a view, so the skip link moves the focus without it. */
function skip(event: Event, main: HTMLElement | null): void {
  event.preventDefault();
  main?.focus();
}

const BACK_MS = 4_000;

/** What the whole page must know: the server is away or back, or wants a token. */
function Banner() {
  const { isUp, since, returns } = useStore(connection);
  const hasToken = useStore(token) !== null;
  const needsToken = missingToken(useStore(denials)) !== undefined;
  const [asksToken, setAsksToken] = useState(false);
  const [isBack, setBack] = useState(false);
  useEffect(() => {
    if (returns === 0 || !isUp) return;
    setBack(true);
    const timer = setTimeout(() => setBack(false), BACK_MS);
    return () => clearTimeout(timer);
  }, [returns, isUp]);
  return (
    <>
      <div role="status">
        {!isUp && (
          <p class="banner bad">
            <strong>The server has not answered since {clock(since)}.</strong> The page tries again every second, and continues by itself.
          </p>
        )}
        {isUp && isBack && <p class="banner good">The server is back.</p>}
        {isUp && needsToken && (
          <p class="banner look">
            <strong>{hasToken ? "The server does not accept this token." : "This server asks for a token."}</strong>{" "}
            <button type="button" class="small" onClick={() => setAsksToken(true)}>
              Enter a token
            </button>
          </p>
        )}
      </div>
      {asksToken && <TokenDialog onClose={() => setAsksToken(false)} />}
    </>
  );
}
