/** Addresses of the views: `#/deliberations/ID`, `#/system`. A query holds a view's filters. */

import { signal, useEffect } from "./html.js";

function read() {
  const hash = location.hash.slice(1);
  const [path, query = ""] = hash.split(/\?(.*)/s);
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  // An address of a deliberation alone, as in links that were sent before the page had views.
  if (hash !== "" && !hash.startsWith("/")) return { view: "deliberations", id: decode(hash), query: new URLSearchParams() };
  const [view, id] = path.split("/").filter(Boolean);
  return { view: view ?? "deliberations", id: id === undefined ? null : decode(id), query: new URLSearchParams(query) };
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

/** The address of a view; entries of `query` that are empty are left out. */
export function address(path, query = {}) {
  const kept = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${path}${kept.size ? `?${kept}` : ""}`;
}

export const of = (id, query) => address(`deliberations/${encodeURIComponent(id)}`, query);

export const go = (target) => {
  location.hash = target;
};

/** The same view with another query, without a step in the browser's history. */
export function adjust(query) {
  const { view: name, id, query: before } = route.value;
  const target = address([name, ...(id === null ? [] : [encodeURIComponent(id)])].join("/"), { ...Object.fromEntries(before), ...query });
  history.replaceState(null, "", target);
  route.value = read();
}

const NAME = "Deliberation Gateway";
/** Sets the title, so that a tab and the browser's history name what they show. */
export function useTitle(words) {
  useEffect(() => {
    document.title = words ? `${words} · ${NAME}` : NAME;
  }, [words]);
}
