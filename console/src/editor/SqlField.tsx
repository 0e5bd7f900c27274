/** The editor as a component. */

import { type RefObject, useEffect, useRef } from "react";
import { type EditorActions, SqlEditor } from "./codemirror.ts";

interface Props {
  id: string;
  text: string;
  actions: EditorActions;
  editor: RefObject<SqlEditor | null>;
}

export const SqlField = ({ id, text, actions, editor }: Props) => {
  const host = useRef<HTMLDivElement>(null);
  // What the editor calls is that of the last drawing.
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    if (!host.current) return;
    const made = new SqlEditor(host.current, {
      completions: () => latest.current.completions(),
      change: (next) => latest.current.change(next),
      run: () => latest.current.run(),
      runAll: () => latest.current.runAll(),
      stream: () => latest.current.stream(),
      format: () => latest.current.format(),
    });
    editor.current = made;
    return () => {
      editor.current = null;
      made.close();
    };
  }, [editor]);
  useEffect(() => editor.current?.show(id, text), [editor, id, text]);
  return <div ref={host} className="sql-field" />;
};
