/** The diagram of foreign keys: tables with their columns, and a line for each key. A list says the same in words. */

import {
  type Edge,
  type EdgeProps,
  Handle,
  type Node,
  type NodeProps,
  Panel,
  Position,
  ReactFlow,
  ReactFlowProvider,
  useStore as useFlow,
  useReactFlow,
  useStoreApi,
} from "@xyflow/react";
import "@xyflow/react/dist/base.css";
import {
  type CSSProperties,
  type FocusEvent,
  type KeyboardEvent,
  type MouseEvent,
  useDeferredValue,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { run } from "../api/data.ts";
import { count, number } from "../app/figures.ts";
import { Marked, marked } from "../app/marked.tsx";
import { Button, Problem, Search, TabList, tabPanel, useLoaded } from "../app/parts.tsx";
import { go } from "../app/place.ts";
import { addressOf, idOf, labelOf } from "../app/relations.ts";
import {
  type DiagramTable,
  foreignColumns,
  KEYS_MAX,
  keyText,
  matchingTables,
  readSchema,
  type Schema,
  schemaQuery,
  shortType,
  TABLES_MAX,
} from "./diagram.ts";
import { type PlacedKey, pathsOf, pictureOf } from "./picture.ts";

const VIEWS = ["Diagram", "List"] as const;
const ASK_AFTER_MS = 300;

const load = async (database: string, text: string): Promise<Schema> => {
  const answer = await run(schemaQuery(text), { database, maxRows: TABLES_MAX, readOnly: true });
  return readSchema(answer.rows);
};

/** The schema. If it is too large to be here as a whole, the service looks for the text. */
const useSchema = (database: string, text: string) => {
  const [asked, ask] = useState("");
  const { value, error, again } = useLoaded(() => load(database, asked), JSON.stringify([database, asked]));
  const [known, setKnown] = useState<{ whole: Schema; last: Schema }>();
  useEffect(() => {
    // While another part of it is on its way, the one before remains.
    if (value) setKnown((before) => ({ whole: asked ? (before?.whole ?? value) : value, last: value }));
  }, [value, asked]);
  const isPart = known !== undefined && known.whole.tableCount > known.whole.tables.length;
  const wanted = isPart ? text.trim() : "";
  useEffect(() => {
    if (wanted === asked) return;
    const timer = setTimeout(() => ask(wanted), ASK_AFTER_MS);
    return () => clearTimeout(timer);
  }, [wanted, asked]);
  return { schema: known?.last, whole: known?.whole, isPart, error, again };
};

export const Diagram = ({ database }: { database: string }) => {
  const [text, setText] = useState("");
  const [view, setView] = useState<(typeof VIEWS)[number]>("Diagram");
  const { schema, whole, isPart, error, again } = useSchema(database, text);
  const filter = useDeferredValue(text);
  const { tables, matched } = useMemo(() => matchingTables(schema?.tables ?? [], filter), [schema, filter]);
  const isEmpty = whole?.tables.length === 0;
  return (
    <ReactFlowProvider>
      <div className="bar table-head diagram-bar">
        <h1>Foreign keys</h1>
        <TabList label="View" panel="diagram-view" names={VIEWS} chosen={view} choose={setView} />
        <small role="status">
          {whole && (filter.trim() ? matchText(matched.size, tables.length - matched.size) : countText(whole))}
        </small>
        <span className="spring" />
        <Search label="Filter the diagram" placeholder="Filter by name" value={text} change={setText} />
        <Button onClick={again}>Reload</Button>
      </div>
      <Problem error={error} />
      {whole && isPart && (
        <p className="note">
          This database has {count(whole.tableCount, "table")}. {number(TABLES_MAX)} are shown at a time, those with
          foreign keys first. Filter by name to see others.
        </p>
      )}
      {schema && schema.keyCount > KEYS_MAX && (
        <p className="note">
          {number(KEYS_MAX)} of {count(schema.keyCount, "foreign key")} are shown.
        </p>
      )}
      {!whole && !error && <p className="state">Loading…</p>}
      {isEmpty && <p className="state">There is no table in this database yet.</p>}
      <div className="tab-panel" {...tabPanel("diagram-view", VIEWS.indexOf(view))}>
        {schema && !isEmpty && view === "Diagram" && <Canvas tables={tables} matched={matched} />}
        {schema && !isEmpty && view === "List" && <References tables={tables} matched={matched} />}
      </div>
    </ReactFlowProvider>
  );
};

const countText = ({ tableCount, keyCount }: Schema): string =>
  `${count(tableCount, "table")}, ${count(keyCount, "foreign key")}`;

const matchText = (matched: number, near: number): string =>
  `${count(matched, "table")} found${near ? `, and ${number(near)} linked with ${matched === 1 ? "it" : "them"}` : ""}`;

/** At the bottom, there are buttons. */
const FIT = { padding: { top: "24px", x: "24px", bottom: "64px" }, maxZoom: 1 } as const;

interface ShownProps {
  tables: readonly DiagramTable[];
  /** The ids of those that the filter has found, not of those linked with them. */
  matched: ReadonlySet<string>;
}

type TableNode = Node<{ table: DiagramTable; isMatch: boolean }, "table">;
type LabelNode = Node<{ text: string }, "label">;
type KeyEdge = Edge<{ placed: PlacedKey }, "key">;

// The link in it has one. Without a role, nothing may describe it.
const NO_ROLE = { "aria-roledescription": undefined };
const LABEL = { width: 320, height: 24 };

const nodesOf = ({ tables, label }: ReturnType<typeof pictureOf>, matched: ReadonlySet<string>) => {
  const nodes: (TableNode | LabelNode)[] = tables.map(({ table, x, y, width, height }) => ({
    id: table.id,
    type: "table",
    position: { x, y },
    width,
    height,
    data: { table, isMatch: matched.has(table.id) },
    domAttributes: NO_ROLE,
  }));
  if (label) {
    const { text, ...position } = label;
    nodes.push({ id: "label", type: "label", position, ...LABEL, data: { text }, domAttributes: NO_ROLE });
  }
  return nodes;
};

const edgesOf = (keys: readonly PlacedKey[]): KeyEdge[] =>
  keys.map((placed) => ({
    id: placed.id,
    type: "key",
    source: placed.from.id,
    target: placed.to.id,
    ariaLabel: keyText(placed.from, placed.key),
    data: { placed },
  }));

/** By how many pixels a key moves the picture. */
const STEPS: Record<string, [number, number]> = {
  ArrowLeft: [80, 0],
  ArrowRight: [-80, 0],
  ArrowUp: [0, 80],
  ArrowDown: [0, -80],
};

/** Of width to height, for screens and for phones. */
const WIDE = 1.6;
const TALL = 0.7;

/** Below this zoom, no column can be read, and a table shows its name only. */
const FAR_ZOOM = 0.42;

const Canvas = ({ tables, matched }: ShownProps) => {
  const isTall = useFlow(({ width, height }) => height > width);
  const picture = useMemo(() => pictureOf(tables, isTall ? TALL : WIDE), [tables, isTall]);
  const nodes = useMemo(() => nodesOf(picture, matched), [picture, matched]);
  const edges = useMemo(() => edgesOf(picture.keys), [picture]);
  const [active, setActive] = useState<string>();
  const shownEdges = useMemo(
    () =>
      edges.map((edge) => (edge.source === active || edge.target === active ? { ...edge, className: "active" } : edge)),
    [edges, active],
  );
  const { fitView, zoomIn, zoomOut, getViewport, setViewport, setCenter } = useReactFlow();
  const flow = useStoreApi();
  const isFar = useFlow(({ transform }) => transform[2] < FAR_ZOOM);
  const size = useFlow(({ width, height }) => `${width} ${height}`);
  // Until it is moved, it is kept as large as the window allows.
  const isFitted = useRef(true);
  const showAll = () => {
    isFitted.current = true;
    void fitView(FIT);
  };
  const zoom = (act: () => Promise<boolean>) => {
    isFitted.current = false;
    void act();
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: another picture is shown as a whole
  useEffect(showAll, [picture]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: when the window's size has changed
  useEffect(() => {
    if (isFitted.current) void fitView(FIT);
  }, [size]);

  const press = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    if (step) {
      const { x, y, zoom: scale } = getViewport();
      isFitted.current = false;
      void setViewport({ x: x + step[0], y: y + step[1], zoom: scale });
    } else if (event.key === "+") zoom(zoomIn);
    else if (event.key === "-") zoom(zoomOut);
    else if (event.key === "0") showAll();
    else return;
    event.preventDefault();
  };
  /** Brings a table that was reached by the keyboard into sight. */
  const reveal = (event: FocusEvent<HTMLElement>) => {
    const id = event.target.closest<HTMLElement>("[data-id]")?.dataset.id;
    const found = picture.tables.find(({ table }) => table.id === id);
    setActive(found?.table.id);
    if (!found || !event.target.matches(":focus-visible")) return;
    // By what is drawn: the browser may scroll to it for a moment.
    const { transform, width, height } = flow.getState();
    const [left, top, scale] = transform;
    const isSeen =
      found.x * scale + left >= 0 &&
      found.y * scale + top >= 0 &&
      (found.x + found.width) * scale + left <= width &&
      (found.y + found.height) * scale + top <= height;
    if (isSeen) return;
    isFitted.current = false;
    void setCenter(found.x + found.width / 2, found.y + found.height / 2, { zoom: scale });
  };

  /** Its name is a link, and all of it can be clicked. */
  const open = ({ target }: MouseEvent, { data }: TableNode | LabelNode) => {
    if ("table" in data && !(target as Element).closest("a")) go("tables", idOf(data.table));
  };

  return (
    <ReactFlow
      className={isFar ? "diagram far" : "diagram"}
      aria-label="Diagram of foreign keys. The list has the same in words."
      tabIndex={0}
      onKeyDown={press}
      onFocus={reveal}
      onBlur={() => setActive(undefined)}
      nodes={nodes}
      edges={shownEdges}
      nodeTypes={NODE_TYPES}
      edgeTypes={EDGE_TYPES}
      onNodeClick={open}
      onNodeMouseEnter={(_, node) => setActive(node.id)}
      onNodeMouseLeave={() => setActive(undefined)}
      onMoveStart={(event) => {
        if (event) isFitted.current = false;
      }}
      minZoom={0.04}
      maxZoom={2}
      fitView
      fitViewOptions={FIT}
      nodesDraggable={false}
      nodesConnectable={false}
      // Its links have the focus.
      nodesFocusable={false}
      edgesFocusable={false}
      elementsSelectable={false}
      disableKeyboardA11y
      zoomOnDoubleClick={false}
      deleteKeyCode={null}
      selectionKeyCode={null}
      multiSelectionKeyCode={null}
      panActivationKeyCode={null}
      zoomActivationKeyCode={null}
    >
      <Panel position="bottom-left" className="diagram-zoom">
        <Button aria-label="Zoom out" onClick={() => zoom(zoomOut)}>
          −
        </Button>
        <Button aria-label="Zoom in" onClick={() => zoom(zoomIn)}>
          +
        </Button>
        <Button onClick={showAll}>Fit</Button>
      </Panel>
    </ReactFlow>
  );
};

/** How large a name can be that stands for its table. */
const nameSize = (name: string, width: number): number =>
  Math.min(28, Math.max(13, (width - 12) / (name.length * 0.64)));

const TableBox = ({ data: { table, isMatch }, width = 0 }: NodeProps<TableNode>) => {
  const name = labelOf(table);
  const foreign = foreignColumns(table);
  return (
    <>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <Handle type="source" position={Position.Right} isConnectable={false} />
      <div className={isMatch ? "diagram-table" : "diagram-table near"}>
        <a
          className="diagram-name"
          href={addressOf(table)}
          draggable={false}
          title={marked(idOf(table))}
          style={{ "--far-size": `${nameSize(name, width)}px` } as CSSProperties}
        >
          <Marked>{name}</Marked>
        </a>
        <ul className="diagram-columns">
          {table.columns.map(({ name: column, type, isPrimary }) => (
            <li key={column} className="diagram-column" title={marked(`${column} ${type}`)}>
              <span className={isPrimary ? "diagram-column-name primary" : "diagram-column-name"}>
                <Marked>{column}</Marked>
              </span>
              {isPrimary && <abbr title="primary key">PK</abbr>}
              {foreign.has(column) && (
                <abbr className="foreign" title="foreign key">
                  FK
                </abbr>
              )}
              <small>
                <Marked>{shortType(type)}</Marked>
              </small>
            </li>
          ))}
          {table.others > 0 && <li className="diagram-column others">and {count(table.others, "other column")}</li>}
        </ul>
      </div>
    </>
  );
};

const LabelBox = ({ data: { text } }: NodeProps<LabelNode>) => <p className="diagram-label">{text}</p>;

const KeyLine = ({ data }: EdgeProps<KeyEdge>) => {
  const paths = useMemo(() => data && pathsOf(data.placed), [data]);
  return (
    paths && (
      <>
        <path className="react-flow__edge-path" d={paths.line} />
        <path className="diagram-arrow" d={paths.arrows} />
      </>
    )
  );
};

const NODE_TYPES = { table: TableBox, label: LabelBox };
const EDGE_TYPES = { key: KeyLine };

const TableLink = ({ to }: { to: Parameters<typeof addressOf>[0] }) => (
  <a href={addressOf(to)}>
    <Marked>{labelOf(to)}</Marked>
  </a>
);

/** What the diagram shows, in words. */
const References = ({ tables, matched }: ShownProps) => {
  const keys = tables.flatMap((table) =>
    table.keys
      .filter(({ references }) => matched.has(table.id) || matched.has(references.id))
      .map((key) => ({ table, key })),
  );
  const targets = new Set(tables.flatMap((table) => table.keys.map(({ references }) => references.id)));
  const loose = tables.filter(({ id, keys: own }) => own.length === 0 && !targets.has(id));
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls
    <div className="page structure" tabIndex={0} role="region" aria-label="List of foreign keys">
      <h2>References</h2>
      {keys.length === 0 && <p className="empty">There is no foreign key.</p>}
      <ul className="definitions" aria-label="References">
        {keys.map(({ table, key }) => (
          <li key={`${table.id} ${key.name}`}>
            <TableLink to={table} /> (<Marked>{key.columns.join(", ")}</Marked>) references{" "}
            <TableLink to={key.references} /> (<Marked>{key.references.columns.join(", ")}</Marked>)
            {key.onDelete !== "no action" && `, on delete ${key.onDelete}`}
            {key.onUpdate !== "no action" && `, on update ${key.onUpdate}`}
          </li>
        ))}
      </ul>
      {loose.length > 0 && (
        <>
          <h2>Without foreign keys</h2>
          <ul className="definitions" aria-label="Without foreign keys">
            {loose.map((table) => (
              <li key={table.id}>
                <TableLink to={table} />
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
};
