// The token of this tab.
import { useState } from "preact/hooks";
import { setToken, token } from "../live/api.ts";
import { Dialog } from "../parts/ui.tsx";

export function TokenDialog({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const hasToken = token.value !== null;
  const isToken = /^orderfree_[0-9a-f]{64}$/.test(text.trim());
  const use = (event: Event) => {
    event.preventDefault();
    setToken(text.trim());
    onClose();
  };
  return (
    <Dialog title="Token" onClose={onClose}>
      <form onSubmit={use}>
        <p>The token stays in this tab until you close it. The page sends it as a header, and only to this server.</p>
        <label class="field">
          Token
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            placeholder="orderfree_…"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
            required
          />
        </label>
        {text.trim() !== "" && !isToken && <p class="note">A token is “orderfree_” followed by 64 hexadecimal digits.</p>}
        <div class="row">
          <button class="main" disabled={text.trim() === ""}>
            Use this token
          </button>
          {hasToken && (
            <button
              type="button"
              onClick={() => {
                setToken(null);
                onClose();
              }}
            >
              Remove the current token
            </button>
          )}
          <button type="button" onClick={onClose}>
            Cancel
          </button>
        </div>
      </form>
    </Dialog>
  );
}
