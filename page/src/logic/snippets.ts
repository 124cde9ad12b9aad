// The same update and read for a shell, Python and TypeScript.
import { path } from "./route.ts";
import type { Key } from "../types.ts";

export const LANGUAGES = ["curl", "Python", "TypeScript"] as const;
export type Language = (typeof LANGUAGES)[number];

export function snippet(language: Language, origin: string, key: Key, op: string, needsToken: boolean): string {
  const url = `${origin}/v1/${path(key.kind, key.group, key.name)}`;
  switch (language) {
    case "curl": {
      const token = needsToken ? ` \\\n  -H "Authorization: Bearer $ORDERFREE_TOKEN"` : "";
      return [
        `curl -X POST ${shell(url)}${token} \\\n  -H 'Content-Type: application/json' \\\n  -d ${shell(op)}`,
        `curl ${shell(url)}${token}`,
      ].join("\n\n");
    }
    case "Python": {
      const token = needsToken ? `, "Authorization": f"Bearer {os.environ['ORDERFREE_TOKEN']}"` : "";
      return [
        `${needsToken ? "import os\n\n" : ""}import requests  # pip install requests`,
        `url = ${JSON.stringify(url)}\nheaders = {"Content-Type": "application/json"${token}}`,
        `answer = requests.post(url, ${JSON.stringify(op)}, headers=headers)\nanswer.raise_for_status()`,
        `print(requests.get(url, headers=headers).json()["value"])`,
      ].join("\n");
    }
    case "TypeScript": {
      const token = needsToken ? `, Authorization: \`Bearer \${process.env.ORDERFREE_TOKEN}\`` : "";
      return [
        `const url = ${JSON.stringify(url)};`,
        `const headers = { "Content-Type": "application/json"${token} };`,
        `const answer = await fetch(url, { method: "POST", headers, body: ${JSON.stringify(op)} });`,
        `if (!answer.ok) throw new Error((await answer.json()).detail);`,
        `const { value } = await (await fetch(url, { headers })).json();`,
        `console.log(value);`,
      ].join("\n");
    }
  }
}

function shell(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
