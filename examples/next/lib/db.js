// One client for all routes. It holds no connection, so it may live as long as the process.
import { connect } from "plainsql";

export const db = connect({ url: process.env.PLAINSQL_URL, key: process.env.PLAINSQL_KEY });
