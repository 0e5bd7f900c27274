// Runs the calls of `calls.mjs` on Node, and prints what they gave as JSON. Argument: {url, key, table} as JSON.
import * as driver from "@neondatabase/serverless";
import { calls } from "./calls.mjs";

console.log(JSON.stringify(await calls(driver, JSON.parse(process.argv[2]))));
