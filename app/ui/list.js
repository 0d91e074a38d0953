/** The list: filters, search and pages by the API, all in the address; keys for everything. */

import { First } from "./first.js";
import { request } from "./gateway.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { Chips, Figures, Icon, Status } from "./parts.js";
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
const KEYS = [["J", "next"], ["K", "previous"], ["↵", "open"], ["/", "search"], ["N", "new"], ["?", "these keys"]];

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

function Row({ item, selected, place }) {
  const progress = item.status === "in_progress" ? item.progress : null;
  const took = item.started_at ? (at(item.ended_at) ?? now.value) - at(item.started_at) : null;
  return html`<tr role="row" aria-rowindex=${place} aria-selected=${selected} data-id=${item.id}>
    <td role="cell" class="c-st"><${Status} of=${item} word=${progress?.purpose ?? null} /></td>
    <td role="cell" class="task"><a href=${of(item.id)} title=${item.task} dir="auto">${question(item.task)}</a></td>
    <td role="cell" class="c-council"><${Chips} agents=${item.agents} /></td>
    <td role="cell" class="c-strat quiet">${item.strategy}</td>
    <td role="cell" class="num quiet c-age">${age(item.created_at, now.value)}</td>
    <td role="cell" class="num quiet c-dur">${took === null ? NONE : duration(took)}</td>
    <td role="cell" class="num quiet c-tok">${short(tokensOf(item.usage))}</td>
    <td role="cell" class="num c-cost">${money(item.usage?.cost)}</td>
    <td role="cell" class="c-win">${item.winner ? html`<span class="won"><span class="letter win">1</span>${item.winner}</span>` : html`<span class="muted">${NONE}</span>`}</td></tr>`;
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

function Rows({ items, selected }) {
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
    item ? html`<${Row} key=${key} item=${item} selected=${key === selected} place=${place} />`
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
    setMore([]);
    return poll(async () => setFirst({ key, ...(await request(`/deliberations?${queryOf(filters)}`)) }), LIVE_MS);
  }, [key]);
  const cursor = more.length ? more.at(-1).next_cursor : first?.next_cursor;
  const load = async () => setMore([...more, await request(`/deliberations?${queryOf(filters, cursor)}`)]);
  const items = useMemo(() => {
    const known = new Set();
    const all = [first, ...more].flatMap((page) => page?.items ?? []).filter(({ id }) => !known.has(id) && known.add(id));
    return [...all.filter(({ status }) => ACTIVE.has(status)), ...all.filter(({ status }) => !ACTIVE.has(status))];
  }, [first, more]);
  return { ready: first?.key === key, items, load: cursor ? load : null };
}

export function List() {
  useTitle("Deliberations");
  const filters = new URLSearchParams(route.value.view === "deliberations" ? route.value.query : "");
  const { ready, items, load } = usePages(filters);
  const figures = useFigures();
  const [selected, setSelected] = useState("");
  const [help, setHelp] = useState(false);
  const search = useRef(null);
  const typing = useRef(null);
  const onKey = (event) => {
    if (event.target.closest("input, textarea, select, [role=dialog]") || event.ctrlKey || event.metaKey || event.altKey) return;
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
    } else if (event.key === "?") setHelp(!help);
  };
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const onSearch = (event) => {
    clearTimeout(typing.current);
    typing.current = setTimeout(() => adjust({ q: event.target.value.trim() }), 250);
  };
  if (ready && items.length === 0 && filters.size === 0) return html`<${First} />`;
  return html`<div class="wrap"><div class="head lister"><div class="row wrapx counters"><h1>Deliberations</h1><${Counters} figures=${figures} /></div>
      <div class="acts">${may("submit") ? html`<a class="btn primary" href=${address("new")}><${Icon} name="plus" />New deliberation <kbd>N</kbd></a>` : ""}</div></div>
    <div class="row wrapx filters"><label class="field"><${Icon} name="search" /><span class="vh">Search tasks and verdicts</span>
      <input ref=${search} type="search" placeholder="Search tasks and verdicts" value=${filters.get("q") ?? ""} onInput=${onSearch} /><kbd>/</kbd></label>
      <${Choice} name="status" label="Status" options=${STATUSES} filters=${filters} />
      <${Choice} name="strategy" label="Strategy" options=${strategies.value.map(({ name }) => [name, name])} filters=${filters} />
      <${Choice} name="role" label="Role" options=${roles.value.map(({ name }) => [name, name.toLowerCase()])} filters=${filters} />
      <${Choice} name="since" label="Since" options=${[["hour", "an hour ago"], ["day", "a day ago"], ["week", "a week ago"], ["month", "a month ago"]]} filters=${filters} /></div>
    <table class="list" role="table" aria-rowcount=${load ? -1 : null}><caption class="vh">Deliberations, newest first</caption>
      <thead role="rowgroup"><tr role="row">${[["Status"], ["Task"], ["Council", "c-council"], ["Strategy", "c-strat"], ["Age", "num c-age"], ["Took", "num c-dur"], ["Tokens", "num c-tok"], ["Cost", "num"], ["Winner"]].map(([word, place]) => html`<th role="columnheader" scope="col" class=${place}>${word}</th>`)}</tr></thead>
      <${Rows} items=${items} selected=${selected} /></table>
    ${ready && items.length === 0 ? html`<p class="quiet empty">Nothing matches these filters.</p>` : ""}
    <p class="foot">${load ? html`<button class="btn" onClick=${load}>Older ones</button>` : html`<span>${plural(items.length, "deliberation")}</span>`}
      ${(help ? KEYS : KEYS.slice(-1)).map(([key, word]) => html`<span><kbd>${key}</kbd> ${word}</span>`)}</p></div>`;
}
