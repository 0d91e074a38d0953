/** Small parts that several views draw. */

import { html, signal, useState } from "./html.js";
import { family, state } from "./words.js";

const ICONS = {
  alert: "M8 2.2 14.4 13H1.6zM8 6.4v3M8 11.2v.1",
  again: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  check: "m3.5 8.5 3 3 6-7",
  clock: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2M8 4.8V8l2.2 1.6",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  cross: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4",
  close: "m4 4 8 8M12 4l-8 8",
  down: "M8 2v8m0 0 3-3m-3 3L5 7M3 13.5h10",
  hourglass: "M4.5 2h7M4.5 14h7M5 2c0 4 6 4 6 6s-6 2-6 6M11 2c0 4-6 4-6 6s6 2 6 6",
  info: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2M8 7.4V11M8 5v.1",
  list: "M2.5 4h11M2.5 8h11M2.5 12h7",
  minus: "M3 8h10",
  pause: "M5.5 4v8M10.5 4v8",
  people: "M5.6 3a2.4 2.4 0 1 1 0 4.8 2.4 2.4 0 0 1 0-4.8M1.4 13c.4-3 2-4.4 4.2-4.4S9.4 10 9.8 13M10.6 3.2a2.4 2.4 0 0 1 0 4.4M11.6 9c1.7.4 2.7 1.7 3 4",
  play: "M5 3.2v9.6L12.6 8z",
  plus: "M8 3v10M3 8h10",
  pulse: "M1.5 8.5h3l2-5.5 3 10 2-4.5h3",
  right: "m6 4 4 4-4 4",
  search: "M7 2.6a4.4 4.4 0 1 1 0 8.8 4.4 4.4 0 0 1 0-8.8m3.4 7.8 3.2 3.2",
  spin: "M8 2a6 6 0 1 1-6 6",
  stop: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2M5.8 5.8h4.4v4.4H5.8z",
  swap: "M3 5.5h10M10.5 3 13 5.5 10.5 8M13 10.5H3M5.5 8 3 10.5 5.5 13",
  link: "M6.5 9.5 9.5 6.5M7 4.5l1-1a3 3 0 0 1 4.3 4.3l-1 1M9 11.5l-1 1a3 3 0 0 1-4.3-4.3l1-1",
  bell: "M4 11.5c1-1 1-2.4 1-4a3 3 0 0 1 6 0c0 1.6 0 3 1 4zM6.8 13.5h2.4",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
  tool: "M9.5 6.5 4 12l-1-1 5.5-5.5M8.5 3.5h4v4",
  theme: "M8 2.4a5.6 5.6 0 1 1 0 11.2A5.6 5.6 0 0 1 8 2.4v11.2",
};

export const Icon = ({ name, large = false }) => html`
  <svg class=${`i${large ? "" : " s"}${name === "spin" ? " spin" : ""}`} viewBox="0 0 16 16" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;

export function Status({ of, word = null }) {
  const [icon, tone, name] = state(of);
  return html`<span class=${`st ${tone}`} data-status=${of.status}><${Icon} name=${icon} />${word === null ? name : html`<span class="vh">${name}: </span>${word}`}</span>`;
}

/** `agents` are pairs of role and count. */
export const Chips = ({ agents }) => html`
  <span class="chips">${agents.map(({ role, count }) => html`<span class="chip">${count > 1 ? html`<b>${count}</b> ` : ""}${role.toLowerCase()}</span>`)}</span>`;

export const counted = (agents) => {
  const counts = new Map();
  for (const { role } of agents) counts.set(role, (counts.get(role) ?? 0) + 1);
  return [...counts].map(([role, count]) => ({ role, count }));
};

export const Purpose = ({ name, children }) => html`<span class=${`ph ${family(name)}`}>${name}${children}</span>`;

export const Severity = ({ level }) => html`
  <span class=${`sev ${level}`}>${level === "blocker" ? html`<${Icon} name="alert" />` : ""}${level}</span>`;

export const Bar = ({ share, label = null, ...rest }) => html`
  <div class="bar" ...${rest} ...${label === null ? { "aria-hidden": true } : { role: "progressbar", "aria-label": label, "aria-valuenow": Math.round(share * 100) }}>
    <i style=${{ "--v": `${Math.min(100, share * 100).toFixed(1)}%` }} /></div>`;

export const Table = ({ name, head, children }) => html`
  <div class="scrollx" tabindex="0" role="region" aria-label=${`${name}, table`}><table><thead><tr>${head.map(([word, place = ""]) => html`<th scope="col" class=${place}>${word || html`<span class="vh">Action</span>`}</th>`)}</tr></thead><tbody>${children}</tbody></table></div>`;

export const Block = ({ id, head, words = "", wide = false, action = null, children }) => html`
  <section class=${`block${wide ? " wide" : ""}`} aria-labelledby=${id}><header><h2 id=${id}>${head}</h2><p>${words}</p>${action}</header>${children}</section>`;

export const Figures = ({ items, label }) => html`
  <dl class="figs" aria-label=${label}>${items.map(([name, value, more]) => html`<div><dt>${name}</dt><dd>${value}${more ? html` <small>${more}</small>` : ""}</dd></div>`)}</dl>`;

/** A note that names state, cause and remedy; `children` may end with a button. */
export const Note = ({ tone, head, children, action = null }) => html`
  <div class=${`note ${tone}`}><${Icon} name=${tone === "accent" ? "info" : "alert"} large /><div class="grow"><b>${head}</b> ${children}</div>${action}</div>`;

/**
 * The hemicycle: one seat for each member. A seat is { name, fill }, where fill is "full", "half", "ring", "rest" or "".
 * Above seven seats dots stand without letters.
 */
export function Seats({ seats, width = 104, label }) {
  const many = seats.length > 7;
  const radius = many ? 5 : width / 8.6;
  const across = width / 2 - radius - 3;
  const place = (index) => {
    const angle = Math.PI * (seats.length === 1 ? 0.5 : 0.09 + (0.82 * index) / (seats.length - 1));
    return [width / 2 - across * Math.cos(angle), across * 0.86 + radius + 3 - across * 0.86 * Math.sin(angle)];
  };
  const height = Math.ceil(across * 0.86 * (1 - (seats.length === 1 ? 1 : Math.sin(Math.PI * 0.09))) + 2 * radius + 6);
  return html`<svg class="seats" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
    ${seats.map(({ name, fill }, index) => {
      const [x, y] = place(index);
      return html`<g class=${fill}><circle cx=${x} cy=${y} r=${radius} />${many ? "" : html`<text x=${x} y=${y + 4}>${name}</text>`}</g>`;
    })}</svg>`;
}

/** Two letters for a role: DV for DEV, AR for ARCHITECT. */
export const initials = (role) => ({ DEV: "DV", DEVOPS: "DO" })[role] ?? role.slice(0, 2).toUpperCase();

export const milestone = signal("");
/** Tells people who listen to this tab; texts as they grow are never told. */
export const tell = (text) => {
  if (!document.hidden) milestone.value = text;
};

export async function copyText(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  tell("Copied.");
}

export function Copy({ text, children, small = true, icon = "copy" }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(typeof text === "function" ? await text() : text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1_500);
  };
  return html`<button type="button" class=${`btn${small ? " sm" : ""}`} onClick=${copy}><${Icon} name=${copied ? "check" : icon} />${children}</button>`;
}

export function save(name, type, content) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A button that asks once, in place. */
export function Sure({ word, question, onSure, ...rest }) {
  const [asked, setAsked] = useState(false);
  return asked
    ? html`<span class="row"><span class="body">${question}</span><button type="button" class="btn sm danger" onClick=${() => { setAsked(false); onSure(); }}>Yes, ${word.toLowerCase()}</button><button type="button" class="btn sm" onClick=${() => setAsked(false)}>No</button></span>`
    : html`<button type="button" class="btn danger" onClick=${() => setAsked(true)} ...${rest}>${word}</button>`;
}

export function Stepper({ value, onChange, min = 0, max = 32, label, zero = "" }) {
  return html`<span class="step"><button type="button" aria-label=${`${label}: fewer`} disabled=${value <= min} onClick=${() => onChange(Math.max(min, value - 1))}><${Icon} name="minus" /></button>
    <output aria-label=${label}>${value === null ? zero : value}</output>
    <button type="button" aria-label=${`${label}: more`} disabled=${value >= max} onClick=${() => onChange(Math.min(max, value + 1))}><${Icon} name="plus" /></button></span>`;
}
