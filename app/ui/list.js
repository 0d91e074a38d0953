/** The list: filters, search and pages by the API, all in the address; keys for everything. */

import { First } from "./first.js";
import { request } from "./gateway.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { Bar, Chips, Figures, Icon, Status, Sure, tell } from "./parts.js";
import { address, adjust, go, of, route, useTitle } from "./router.js";
import { may, now, poll, roles, strategies } from "./state.js";
import { age, at, duration, money, NONE, number, plural, question, short, tokensOf } from "./words.js";

const LIVE_MS = 2_000;
const FIGURES_MS = 5_000;
const PAGE = 50;
const STATUSES = [["pending", "waiting"], ["in_progress", "running"], ["completed", "completed"], ["failed", "failed"], ["timeout", "out of time"], ["cancelled", "cancelled"]];
const SINCE = { hour: 3_600_000, day: 86_400_000, week: 604_800_000, month: 2_592_000_000 };
const ACTIVE = new Set(["pending", "in_progress", "cancelling"]);
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "long", year: "numeric" });
/** Heights as in page.css: every row is drawn by arithmetic. */
const PHONE = matchMedia("(max-width: 639px)");
const HEAD_PX = 34;
const rowPx = () => (PHONE.matches ? 110 : 41);
/** Rows are drawn anew after each such way of scrolling, and as far above and below of what is seen. */
const SCROLL_PX = 300;
const TOP_PX = 48;
const KEYS = [["J", "next row"], ["K", "previous row"], ["↵", "open the row"], ["/", "search"], ["N", "new deliberation"], ["?", "these keys"]];
/** Rows under way whose figures are asked for, from the top. */
const WATCHED_MAX = 6;
const SEARCH_MS = 250;

function queryOf(filters, cursor) {
  const query = new URLSearchParams({ limit: PAGE });
  for (const name of ["q", "status", "role", "strategy"]) if (filters.get(name)) query.set(name, filters.get(name));
  if (SINCE[filters.get("since")]) query.set("created_after", new Date(Date.now() - SINCE[filters.get("since")]).toISOString());
  if (cursor) query.set("cursor", cursor);
  return query;
}

function group(item, today) {
  if (ACTIVE.has(item.status)) return "Now";
  const day = new Date(item.created_at);
  day.setHours(0, 0, 0, 0);
  const days = Math.round((today - day) / 86_400_000);
  return days === 0 ? "Today" : days === 1 ? "Yesterday" : DAY.format(day);
}

/** Whether no engine of a member's role can be reached. */
const waits = ({ agents }) => agents.some(({ role }) => {
  const engines = roles.value.find(({ name }) => name === role)?.live?.engines ?? [];
  return engines.length > 0 && engines.every(({ unreachable }) => unreachable);
});

/** The stage of a row under way, with its calls and a bar once they are known. */
function Underway({ item, progress }) {
  if (waits(item)) return html`<${Status} of=${item} word="waits for an engine" />`;
  const { purpose, calls_finished: finished, calls_total: total } = progress ?? item.progress;
  return html`<${Status} of=${item} word=${finished === undefined ? purpose : `${purpose} ${number(finished)} of ${number(total)}`} />${finished === undefined ? "" : html`<${Bar} share=${finished / total} />`}`;
}

function Row({ item, progress, selected, place, onDelete }) {
  const ended = !ACTIVE.has(item.status);
  const took = item.started_at ? (at(item.ended_at) ?? now.value) - at(item.started_at) : null;
  return html`<tr role="row" aria-rowindex=${place} aria-selected=${selected} data-id=${item.id}>
    <td role="cell" class="c-st">${item.status === "in_progress" && item.progress ? html`<${Underway} item=${item} progress=${progress} />` : html`<${Status} of=${item} />`}</td>
    <td role="cell" class="task"><a href=${of(item.id)} title=${item.task} dir="auto">${question(item.task)}</a></td>
    <td role="cell" class="c-council"><${Chips} agents=${item.agents} /></td>
    <td role="cell" class="c-strat quiet">${item.strategy}</td>
    <td role="cell" class="num quiet c-age">${age(item.created_at, now.value)}</td>
    <td role="cell" class="num quiet c-dur">${took === null ? NONE : duration(took)}</td>
    <td role="cell" class="num quiet c-tok">${short(tokensOf(item.usage))}</td>
    <td role="cell" class="num c-cost">${money(item.usage?.cost)}</td>
    <td role="cell" class="c-win">${item.winner ? html`<span class="won" title=${item.winner}>${item.winner}</span>` : html`<span class="muted">${NONE}</span>`}${ended && may("submit") ? html`<span class="rowact"><${Sure} class="btn sm danger" word="Delete" question="For good?" onSure=${() => onDelete(item)} /></span>` : ""}</td></tr>`;
}

/** The rows and their days' heads from top to bottom, each with its height. */
function linesOf(items) {
  const today = new Date();
  today.setHours(0, 0, 0, 0);
  let shown = null;
  return items.flatMap((item) => {
    const name = group(item, today);
    const head = name === shown ? [] : [{ key: name, px: HEAD_PX }];
    shown = name;
    return [...head, { key: item.id, item, px: rowPx() }];
  });
}

/** How far the window's upper edge is below the top of `body`, in steps of `SCROLL_PX`. */
function useScrolled(body) {
  const [steps, setSteps] = useState(0);
  useLayoutEffect(() => {
    const measure = () => setSteps(Math.floor(-body.current.getBoundingClientRect().top / SCROLL_PX));
    measure();
    for (const name of ["scroll", "resize"]) addEventListener(name, measure, { passive: true });
    return () => {
      for (const name of ["scroll", "resize"]) removeEventListener(name, measure);
    };
  }, []);
  return steps * SCROLL_PX;
}

const Space = ({ px }) => (px > 0 ? html`<tr role="presentation" class="space" style=${{ height: `${px}px` }} />` : null);

/** The progress of the first rows under way, by id; a list knows their stages alone. */
function useProgress(items) {
  const [progress, setProgress] = useState(new Map());
  const ids = items.filter(({ status }) => status === "in_progress").slice(0, WATCHED_MAX).map(({ id }) => id);
  useEffect(() => {
    if (ids.length === 0) return () => {};
    // One that has ended or was deleted meanwhile is left to the list.
    return poll(async () => setProgress(new Map(await Promise.all(ids.map(async (id) => [id, (await request(`/deliberations/${encodeURIComponent(id)}`).catch(() => null))?.progress])))), LIVE_MS);
  }, [ids.join()]);
  return progress;
}

function Rows({ items, selected, onDelete }) {
  const progress = useProgress(items);
  const body = useRef(null);
  const top = useScrolled(body);
  const lines = useMemo(() => linesOf(items), [items, PHONE.matches]);
  const [from, to] = [top - SCROLL_PX, top + innerHeight + 2 * SCROLL_PX];
  const drawn = [];
  let [above, y] = [0, 0];
  lines.forEach((line, index) => {
    if (y + line.px <= from) above = y + line.px;
    else if (y < to) drawn.push({ ...line, place: index + 2 });
    y += line.px;
  });
  const below = y - above - drawn.reduce((sum, { px }) => sum + px, 0);
  return html`<tbody role="rowgroup" ref=${body}><${Space} px=${above} />${drawn.map(({ key, item, place }) =>
    item ? html`<${Row} key=${key} item=${item} progress=${progress.get(key)} selected=${key === selected} place=${place} onDelete=${onDelete} />`
      : html`<tr role="row" class="group" key=${key} aria-rowindex=${place}><td role="cell" colspan="9">${key}</td></tr>`)}<${Space} px=${below} /></tbody>`;
}

function Choice({ name, label, options, filters }) {
  const value = filters.get(name) ?? "";
  return html`<label class=${`filter${value ? " on" : ""}`}>${label}<select value=${value} onChange=${(event) => adjust({ [name]: event.target.value })}>
    <option value="">any</option>${options.map(([key, word]) => html`<option value=${key}>${word}</option>`)}</select></label>`;
}

function useFigures() {
  const [figures, setFigures] = useState(null);
  useEffect(() => poll(async () => {
    const from = new Date();
    from.setUTCHours(0, 0, 0, 0);
    // Without an archive there are no statistics, and no counters.
    setFigures(await Promise.all([request("/stats"), request(`/stats?${new URLSearchParams({ from: from.toISOString() })}`)]).then(([all, today]) => ({ all, today }), () => null));
  }, FIGURES_MS), []);
  return figures;
}

function Counters({ figures }) {
  if (figures === null) return null;
  const { all, today } = figures;
  const ended = today.completed + today.failed + today.cancelled + today.timeout;
  return html`<${Figures} label="Counters, live" items=${[
    ["under way", number(all.active)],
    ["ended today", number(ended), today.failed ? `${number(today.failed)} failed` : ""],
    ["tokens today", short(tokensOf(today.tokens))],
    ["cost today", money(today.cost), today.spend ? `of ${money({ amount: today.spend.limit, currency: today.spend.currency })}` : ""],
  ]} />`;
}

/** The rows, with their next page; the first page is asked again every other second. */
function usePages(filters) {
  const [first, setFirst] = useState(null);
  const [more, setMore] = useState([]);
  const key = filters.toString();
  useEffect(() => {
    let old = false;
    setMore([]);
    const end = poll(async () => {
      const page = await request(`/deliberations?${queryOf(filters)}`);
      if (!old) setFirst({ key, ...page });
    }, LIVE_MS);
    return () => {
      old = true;
      end();
    };
  }, [key]);
  const cursor = more.length ? more.at(-1).next_cursor : first?.next_cursor;
  const load = async () => setMore([...more, await request(`/deliberations?${queryOf(filters, cursor)}`)]);
  const items = useMemo(() => {
    const known = new Set();
    const all = [first, ...more].flatMap((page) => page?.items ?? []).filter(({ id }) => !known.has(id) && known.add(id));
    return [...all.filter(({ status }) => ACTIVE.has(status)), ...all.filter(({ status }) => !ACTIVE.has(status))];
  }, [first, more]);
  const remove = (id) => {
    const without = (page) => page && { ...page, items: page.items.filter((item) => item.id !== id) };
    setFirst(without);
    setMore((pages) => pages.map(without));
  };
  return { ready: first?.key === key, items, remove, load: cursor ? load : null };
}

/** The search field's own text. The address follows it after SEARCH_MS, and it follows an address that something else wrote. */
function useSearch(q) {
  const [typed, setTyped] = useState(q);
  const written = useRef(q);
  const timer = useRef(null);
  useEffect(() => {
    if (q === written.current) return;
    clearTimeout(timer.current);
    written.current = q;
    setTyped(q);
  }, [q]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const onInput = ({ target: { value } }) => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      written.current = value.trim();
      adjust({ q: written.current });
    }, SEARCH_MS);
  };
  return [typed, onInput];
}

function KeyHelp({ onClose }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog class="keys" ref=${box} aria-labelledby="keysh" onClose=${onClose}><h2 id="keysh">Keys</h2><dl>${KEYS.map(([key, words]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${words}</dd>`)}</dl><button class="btn" onClick=${() => box.current.close()}>Close</button></dialog>`;
}

export function List() {
  useTitle("Deliberations");
  const filters = new URLSearchParams(route.value.view === "deliberations" ? route.value.query : "");
  const { ready, items, remove, load } = usePages(filters);
  const [typed, onSearch] = useSearch(filters.get("q") ?? "");
  const [fault, setFault] = useState("");
  const figures = useFigures();
  const [selected, setSelected] = useState("");
  const [help, setHelp] = useState(false);
  const search = useRef(null);
  const onKey = (event) => {
    if (event.target.closest("input, textarea, select, dialog, [role=dialog]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      const rows = [...document.querySelectorAll(".list [data-id]")];
      const place = rows.findIndex(({ dataset }) => dataset.id === selected);
      const next = place < 0 ? rows.find((row) => row.getBoundingClientRect().top >= TOP_PX) : rows[place + step];
      if (next === undefined) return;
      setSelected(next.dataset.id);
      next.querySelector("a").focus();
    } else if (event.key === "/") {
      event.preventDefault();
      search.current.focus();
    } else if (event.key === "n" && may("submit")) {
      event.preventDefault();
      go(address("new"));
    } else if (event.key === "?") setHelp(true);
  };
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const onDelete = async ({ id }) => {
    try {
      await request(`/deliberations/${encodeURIComponent(id)}`, { method: "DELETE" });
      setFault("");
      remove(id);
      tell("Deleted.");
    } catch (error) {
      setFault(error.message);
    }
  };
  if (ready && items.length === 0 && filters.size === 0) return html`<${First} />`;
  return html`<div class="wrap"><div class="head lister"><div class="row wrapx counters"><h1>Deliberations</h1><${Counters} figures=${figures} /></div>
      <div class="acts">${may("submit") ? html`<a class="btn primary" href=${address("new")}><${Icon} name="plus" />New deliberation <kbd>N</kbd></a>` : ""}</div></div>
    <div class="row wrapx filters"><label class="field"><${Icon} name="search" /><span class="vh">Search tasks and verdicts</span>
      <input ref=${search} type="search" placeholder="Search tasks and verdicts" value=${typed} onInput=${onSearch} /><kbd>/</kbd></label>
      <${Choice} name="status" label="Status" options=${STATUSES} filters=${filters} />
      <${Choice} name="strategy" label="Strategy" options=${strategies.value.map(({ name }) => [name, name])} filters=${filters} />
      <${Choice} name="role" label="Role" options=${roles.value.map(({ name }) => [name, name.toLowerCase()])} filters=${filters} />
      <${Choice} name="since" label="Since" options=${[["hour", "an hour ago"], ["day", "a day ago"], ["week", "a week ago"], ["month", "a month ago"]]} filters=${filters} /></div>
    ${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}
    <table class="list" role="table" aria-rowcount=${load ? -1 : null}><caption class="vh">Deliberations, newest first</caption>
      <thead role="rowgroup"><tr role="row">${[["Status"], ["Task"], ["Council", "c-council"], ["Strategy", "c-strat"], ["Age", "num c-age"], ["Took", "num c-dur"], ["Tokens", "num c-tok"], ["Cost", "num"], ["Answer by"]].map(([word, place]) => html`<th role="columnheader" scope="col" class=${place}>${word}</th>`)}</tr></thead>
      <${Rows} items=${items} selected=${selected} onDelete=${onDelete} /></table>
    ${ready && items.length === 0 ? html`<p class="quiet empty">Nothing matches these filters.</p>` : ""}
    <p class="foot">${load ? html`<button class="btn" onClick=${load}>Older ones</button>` : html`<span>${plural(items.length, "deliberation")}</span>`}
      <button class="linked" onClick=${() => setHelp(true)}>Keys <kbd>?</kbd></button></p>${help ? html`<${KeyHelp} onClose=${() => setHelp(false)} />` : ""}</div>`;
}
