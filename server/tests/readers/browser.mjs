// Opens a page of one origin in Chromium, whose script reads a stream of another origin with fetch, and prints what
// the page saw as JSON: each event with the moment when the page had it. Arguments: page, data URL, key, SQL.
import { chromium } from "playwright-core";

const [page_url, data_url, key, sql] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage();
  await page.goto(page_url);
  const seen = await page.evaluate(read_stream, { data_url, key, sql });
  console.log(JSON.stringify(seen));
} finally {
  await browser.close();
}

async function read_stream({ data_url, key, sql }) {
  const response = await fetch(`${data_url}/v1/query`, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ sql }),
  });
  const events = [];
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [, type, data] = part.match(/^event: (.*)\ndata: (.*)$/) ?? [];
      if (type) events.push({ type, data: JSON.parse(data), at_ms: performance.now() });
    }
  }
  return { origin: location.origin, request_id: response.headers.get("x-request-id"), events };
}
