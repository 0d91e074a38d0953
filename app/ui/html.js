/** The components' library in one place: `html` writes elements, signals hold state, hooks belong to one component. */

import htm from "./vendor/htm.js";
import { h, render } from "./vendor/preact.js";

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { computed, effect, signal } from "./vendor/signals.js";
export { render };
export const html = htm.bind(h);
