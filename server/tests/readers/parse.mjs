// Reads a stream from standard input with eventsource-parser and prints each event as a line of JSON.
import { createParser } from "eventsource-parser";

const decoder = new TextDecoder();
const parser = createParser({
  onEvent: (event) => console.log(JSON.stringify({ type: event.event, data: JSON.parse(event.data) })),
  onError: (error) => {
    throw error;
  },
});
for await (const piece of process.stdin) parser.feed(decoder.decode(piece, { stream: true }));
