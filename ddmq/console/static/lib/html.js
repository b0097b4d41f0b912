// The tag for markup. Text in it is always text: nothing here builds HTML from strings.
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
