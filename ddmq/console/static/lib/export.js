// Save the answer of an export, page by page, as one file of the browser.
import { authorization, ROOT } from "./session.js";

const PAGES_MAX = 200; // of up to 4 MiB each; more are for `ddmq dlq export`

/** Fetch all pages of an export in JSON lines and save them under a name. */
export async function exportLines(address, query, name) {
  const parts = [];
  let after = "";
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const texts = Object.entries({ ...query, after }).filter(([, value]) => value !== "");
    const response = await fetch(`${ROOT}${address}?${new URLSearchParams(texts)}`, { headers: authorization() });
    const lines = (await response.text()).trimEnd().split("\n");
    const last = JSON.parse(lines.pop());
    if (!response.ok) throw new Error(last.error);
    if (lines.length) parts.push(`${lines.join("\n")}\n`);
    if (last.next == null) break;
    after = last.next;
  }
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}
