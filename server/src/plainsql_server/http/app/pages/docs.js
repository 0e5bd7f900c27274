// The reference of one plane, made of its OpenAPI document: read, fill in, send, see the answer.
// Everything from the document and from answers is put in as text, never as HTML.

const place = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const table = (...rows) => element("table", {}, element("tbody", {}, ...rows));
const row = (...cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
const code = (text) => element("code", {}, text);
// What stands between backticks is code.
const prose = (text) => element("span", {}, ...text.split("`").map((part, index) => (index % 2 ? code(part) : part)));

class Reference {
  constructor(document_) {
    this.document = document_;
  }

  resolved(value) {
    if (!value?.$ref) return value;
    return value.$ref.slice(2).split("/").reduce((found, step) => found[step], this.document);
  }

  operations() {
    const found = [];
    for (const [path, methods] of Object.entries(this.document.paths))
      for (const [method, operation] of Object.entries(methods))
        found.push({ ...operation, path, method: method.toUpperCase() });
    return found;
  }

  // A schema in few words; shapes are links to where they are described.
  words(schema) {
    if (schema.$ref) {
      const name = schema.$ref.split("/").at(-1);
      return element("a", { href: `#shape-${name}` }, name);
    }
    const several = schema.anyOf ?? schema.oneOf ?? schema.allOf?.filter((each) => each.$ref || each.type);
    if (several) return this.joined(several, " or ");
    if (schema.const !== undefined) return code(JSON.stringify(schema.const));
    if (schema.enum) return code(schema.enum.map((each) => JSON.stringify(each)).join(" | "));
    if (schema.type === "array") return element("span", {}, "array of ", this.words(schema.items ?? {}));
    const more = [schema.format, schema.pattern, bounds(schema)].filter(Boolean).join(", ");
    return element("span", {}, [schema.type ?? "anything"].flat().join(" or "), more ? ` (${more})` : "");
  }

  joined(schemas, word) {
    const whole = element("span");
    schemas.forEach((each, index) => whole.append(...(index ? [word] : []), this.words(each)));
    return whole;
  }

  fields(schema) {
    const required = new Set(schema.required ?? []);
    const inOrder = Object.entries(schema.properties ?? {}).sort(([a], [b]) => required.has(b) - required.has(a));
    const rows = inOrder.map(([name, field]) => {
      const also = [required.has(name) ? "required" : "optional", field.default != null ? `default ${JSON.stringify(field.default)}` : ""];
      return row(code(name), this.words(field), prose([field.description ?? "", ...also].filter(Boolean).join(" · ")));
    });
    return rows.length ? table(...rows) : element("p", {}, this.words(schema));
  }
}

function bounds(schema) {
  const bounds = { minimum: "≥", maximum: "≤", minLength: "length ≥", maxLength: "length ≤", minItems: "items ≥" };
  return Object.entries(bounds).filter(([key]) => key in schema).map(([key, sign]) => `${sign} ${schema[key]}`).join(", ");
}

// What a caller fills in for one operation.
class Form {
  constructor(reference, operation) {
    this.operation = operation;
    this.parameters = (operation.parameters ?? []).map((parameter) => ({
      parameter, input: element("input", { "aria-label": parameter.name, placeholder: String(parameter.example ?? parameter.schema.default ?? "") }),
    }));
    const [type, media] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
    this.type = type;
    this.examples = Object.values(media?.examples ?? {});
    this.body = type && element("textarea", { "aria-label": "Body", spellcheck: "false" });
    if (this.body) this.body.value = shown(this.examples[0]?.value ?? {});
    this.result = element("div", { class: "result", "aria-live": "polite" });
    this.answer = element("pre", { hidden: "", "aria-live": "polite" });
    this.reference = reference;
  }

  parts() {
    const parts = [];
    if (this.parameters.length)
      parts.push(element("h3", {}, "Parameters"), table(...this.parameters.map(({ parameter, input }) =>
        row(code(parameter.name), element("span", {}, `${parameter.in}: `, this.reference.words(parameter.schema)), prose(parameter.description), input))));
    if (this.body) {
      const schema = this.operation.requestBody.content[this.type].schema;
      parts.push(element("h3", {}, "Body, ", this.type), this.reference.fields(this.reference.resolved(schema)), this.chooser(), this.body);
    }
    parts.push(element("button", { type: "button", onclick: () => this.send() }, "Send"), this.result, this.answer, this.programs());
    return parts;
  }

  // The request as it is filled in, for a terminal or a program. The key stays out of it.
  programs() {
    const text = element("pre");
    const language = element("select", { "aria-label": "Language" }, ...Object.keys(PROGRAMS).map((name) => element("option", {}, name)));
    const write = () => {
      const [path, { method, headers, body }] = this.request();
      const given = [...headers].filter(([name]) => name !== "authorization");
      text.textContent = PROGRAMS[language.value](method, new URL(path, location.href).href, given, this.operation.security.length > 0, body);
    };
    language.addEventListener("change", write);
    return element("details", { class: "programs", ontoggle: write }, element("summary", {}, "As curl, Python or JavaScript"), language, text);
  }

  chooser() {
    const options = this.examples.map((example, index) => element("option", { value: String(index) }, example.summary));
    const choose = (event) => { this.body.value = shown(this.examples[Number(event.target.value)].value); };
    return element("p", {}, "Example: ", element("select", { "aria-label": "Example", onchange: choose }, ...options));
  }

  request() {
    let path = this.operation.path;
    const query = new URLSearchParams();
    const headers = new Headers();
    for (const { parameter, input } of this.parameters) {
      const value = input.value || (parameter.in === "path" ? input.placeholder : "");
      if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (value && parameter.in === "query") query.set(parameter.name, value);
      else if (value) headers.set(parameter.name, value);
    }
    const key = place("key").value.trim();
    if (key && this.operation.security.length) headers.set("Authorization", `Bearer ${key}`);
    if (this.body) headers.set("Content-Type", this.type);
    const options = { method: this.operation.method, headers, body: this.body?.value, credentials: "omit", cache: "no-store" };
    return [query.size ? `${path}?${query}` : path, options];
  }

  async send() {
    const [url, options] = this.request();
    this.answer.hidden = false;
    this.result.replaceChildren();
    this.answer.textContent = `${options.method} ${url} …`;
    try {
      await this.show(await fetch(url, options));
    } catch (error) {
      this.answer.append(`\n${error}`);
    }
  }

  async show(response) {
    const shown = ["x-request-id", "content-type", "ratelimit", "retry-after", "server-timing", "idempotency-replayed"];
    const headers = shown.filter((name) => response.headers.has(name)).map((name) => `${name}: ${response.headers.get(name)}`);
    const head = [`${response.status}`, ...headers, "", ""].join("\n");
    this.answer.textContent = head;
    if (response.headers.get("content-type") === "application/json") {
      const text = await response.text();
      this.answer.textContent = head + pretty(text);
      this.result.replaceChildren(...resultTables(exact(text)));
      return;
    }
    // A stream is shown as it comes.
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader?.read(); part && !part.done; part = await reader.read()) this.answer.append(part.value);
  }
}

const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const PROGRAMS = {
  curl: (method, url, headers, needsKey, body) =>
    [`curl -X ${method}`, ...(needsKey ? ['-H "Authorization: Bearer $PLAINSQL_API_KEY"'] : []),
      ...headers.map(([name, value]) => `-H ${inShell(`${name}: ${value}`)}`),
      ...(body === undefined ? [] : [`--data ${inShell(body)}`]), inShell(url)].join(" \\\n  "),
  Python: (method, url, headers, needsKey, body) => {
    const given = headers.map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`);
    if (needsKey) given.unshift(`"authorization": "Bearer " + os.environ["PLAINSQL_API_KEY"]`);
    const data = body === undefined ? "" : `, data=${JSON.stringify(body)}.encode()`;
    return `import os, urllib.request\n\nrequest = urllib.request.Request(\n    ${JSON.stringify(url)}, method="${method}"${data},\n`
      + `    headers={${given.join(", ")}},\n)\nprint(urllib.request.urlopen(request).read().decode())`;
  },
  JavaScript: (method, url, headers, needsKey, body) => {
    const given = headers.map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`);
    if (needsKey) given.unshift('authorization: `Bearer ${process.env.PLAINSQL_API_KEY}`');
    const sent = body === undefined ? "" : `,\n  body: ${JSON.stringify(body)}`;
    return `const response = await fetch(${JSON.stringify(url)}, {\n  method: "${method}",\n  headers: { ${given.join(", ")} }${sent},\n});\n`
      + "console.log(await response.text());";
  },
};

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// Indented by hand, so that numbers keep their digits: JavaScript's own would be rounded.
function pretty(text) {
  let depth = 0, quoted = false, written = "";
  for (let index = 0; index < text.length; index++) {
    const char = text[index];
    if (quoted) {
      written += char;
      if (char === "\\") written += text[++index];
      else if (char === '"') quoted = false;
    } else if ((char === "{" && text[index + 1] === "}") || (char === "[" && text[index + 1] === "]")) {
      written += char + text[++index];
    } else if (char === "{" || char === "[") written += `${char}\n${"  ".repeat(++depth)}`;
    else if (char === "}" || char === "]") written += `\n${"  ".repeat(--depth)}${char}`;
    else if (char === ",") written += `,\n${"  ".repeat(depth)}`;
    else if (char === ":") written += ": ";
    else {
      quoted = char === '"';
      written += char;
    }
  }
  return written;
}

// Numbers keep their digits, where the browser can.
const exact = (text) => JSON.parse(text, (_, value, context) =>
  (typeof value === "number" && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value));

// The tables of a query, or of the statements of a transaction; none for other answers.
function resultTables(answer) {
  const results = Array.isArray(answer.results) ? answer.results : [answer];
  return results.filter((each) => answer.success && Array.isArray(each?.columns)).map(resultTable);
}

const ROWS_SHOWN = 500;

function resultTable({ columns, rows, command, affected_rows: affected, truncated }) {
  const names = uniqueNames(columns);
  // Where numbers keep their digits, they are objects that can't be converted to text.
  const count = columns.length ? rows.length : (affected?.rawJSON ?? affected);
  const more = truncated ? ", truncated" : rows.length > ROWS_SHOWN ? `, the first ${ROWS_SHOWN} shown` : "";
  const cells = (each) => element("tr", {}, ...names.map((name, index) => resultCell(Array.isArray(each) ? each[index] : each[name])));
  return element("table", {}, element("caption", {}, `${command}, ${count} ${String(count) === "1" ? "row" : "rows"}${more}`),
    element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", {}, name)))),
    element("tbody", {}, ...rows.slice(0, ROWS_SHOWN).map(cells)));
}

function resultCell(value) {
  if (value === null) return element("td", { class: "null" }, "NULL");
  return element("td", {}, typeof value === "string" ? value : JSON.stringify(value));
}

// As in the rows: a second `id` is `id_1`.
function uniqueNames(columns) {
  const taken = new Set(columns), seen = new Set();
  return columns.map((name) => {
    let unique = name;
    for (let number = 0; seen.has(unique) || (number && taken.has(unique));) unique = `${name}_${++number}`;
    seen.add(unique);
    return unique;
  });
}

function answers(reference, operation) {
  return table(...Object.entries(operation.responses).map(([status, response]) => {
    const described = reference.resolved(response);
    const shapes = Object.entries(described.content ?? {}).map(([type, media]) => element("div", {}, `${type}: `, reference.words(media.schema)));
    return row(code(status), element("div", { class: "lines" }, prose(described.description)), element("div", {}, ...shapes));
  }));
}

function section(reference, operation) {
  return element("section", { id: operation.operationId },
    element("h2", {}, element("span", { class: "method" }, operation.method), " ", code(operation.path)),
    element("p", {}, prose(`${operation.summary.replace(/[?]$/, "")}. ${operation.description}`)),
    ...new Form(reference, operation).parts(),
    element("details", {}, element("summary", {}, "Responses"), answers(reference, operation)));
}

function show(reference) {
  const { info, components } = reference.document;
  document.title = place("title").textContent = info.title;
  place("about").replaceChildren(info.description, ` Version ${info.version}. `, element("a", { href: "openapi.json" }, "openapi.json"));
  const groups = new Map();
  for (const operation of reference.operations()) {
    const [tag] = operation.tags;
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(operation);
  }
  for (const [tag, operations] of groups) {
    place("routes").append(element("h2", {}, tag), ...operations.map((operation) =>
      element("a", { href: `#${operation.operationId}` }, element("span", { class: "method" }, operation.method), operation.path)));
    place("operations").append(...operations.map((operation) => section(reference, operation)));
  }
  for (const [name, schema] of Object.entries(components.schemas))
    place("shapes").append(element("h3", { id: `shape-${name}` }, name), element("p", {}, prose(schema.description ?? "")), reference.fields(schema));
  // The browser looked for the place before it was made.
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  show(new Reference(await (await fetch("openapi.json")).json()));
} catch (error) {
  place("about").textContent = `Can't load openapi.json: ${error}`;
}
