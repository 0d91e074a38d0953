/** Files of the form: how they come, their uploads with the rows that show them, and files of a deliberation that is shown. */

import { faultInWords, Refused, request, send } from "./gateway.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { Bar, Icon, tell } from "./parts.js";
import { number, plural, size } from "./words.js";

const EVIDENCE_ID_CHARS_MAX = 64;
const TITLE_CHARS_MAX = 200;
/** A larger picture is downloaded to be seen. */
const PREVIEW_BYTES_MAX = 8_000_000;

/**
 * The uploads of the form, in the order of their choice; like what is written, they outlive the drawer.
 * Each is { key, name, bytes, share, stored, fault, file }: the `share` that is sent, null before; `stored` as the gateway describes it.
 */
export const uploads = signal([]);
/** The upload that is being sent: { key, stop }. */
let sending = null;
let keys = 0;

const change = (key, changed) => {
  uploads.value = uploads.value.map((upload) => (upload.key === key ? { ...upload, ...changed } : upload));
};
export const unfinished = () => uploads.value.filter(({ stored, fault }) => stored === null && fault === "");

const idOf = (sha256) => `file-${sha256}`;

/** `wanted` as an id of evidence that is not `taken`. */
export function freeId(wanted, taken) {
  const base = wanted.replace(/[^A-Za-z0-9_.-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "file";
  for (let count = 1; ; count += 1) {
    const end = count === 1 ? "" : `-${count}`;
    const id = `${base.slice(0, EVIDENCE_ID_CHARS_MAX - end.length)}${end}`;
    if (!taken.includes(id)) return id;
  }
}

/** The stored files as `evidence` of a request, after `others`. */
export function withFiles(others) {
  const evidence = [...others];
  for (const { name, stored } of uploads.value) {
    if (stored !== null) evidence.push({ id: freeId(name, evidence.map(({ id }) => id)), title: name.slice(0, TITLE_CHARS_MAX), file: stored.id });
  }
  return evidence;
}

/** Why a file was not taken, and what to do about it. */
function refusalInWords(error) {
  if (!(error instanceof Refused)) return "The upload broke: the gateway stopped, or takes no file as large. Choose the file again, or a smaller one.";
  if (error.status === 413) return `${error.message} Choose a smaller one, or delete others.`;
  return error.faults.map(faultInWords).join("\n") || error.message;
}

/** One file after the other, so that other requests find a connection. */
async function sendNext() {
  const next = unfinished()[0];
  if (sending !== null || next === undefined) return;
  const { key, name, file } = next;
  const form = new FormData();
  form.append("file", file, name);
  tell(`Uploading ${name}.`);
  const { answer, stop } = send("/files", form, (share) => change(key, { share }));
  sending = { key, stop };
  try {
    const stored = await answer;
    change(key, { stored, file: null });
    tell(`${name} is stored.`);
  } catch (error) {
    change(key, { fault: refusalInWords(error), file: null });
  }
  sending = null;
  sendNext();
}

/** Takes files that were chosen, dropped or pasted. */
export function take(chosen) {
  const taken = [...chosen].map(({ file, fault = "" }) => ({ key: (keys += 1), name: file.name || "file", bytes: file.size, share: null, stored: null, fault, file }));
  uploads.value = [...uploads.value, ...taken];
  sendNext();
}

/** Replaces the form's files by those of a deliberation's evidence. */
export function takeStored(evidence) {
  sending?.stop();
  uploads.value = evidence.map(({ title, file }) => ({ key: (keys += 1), name: title, bytes: file.bytes, share: null, stored: { ...file, id: idOf(file.sha256) }, fault: "", file: null }));
}

/** Removes an upload from the form, and from the gateway where nothing else uses it. */
function remove({ key, stored }) {
  uploads.value = uploads.value.filter((upload) => upload.key !== key);
  if (sending?.key === key) sending.stop();
  const used = stored === null || uploads.value.some((upload) => upload.stored?.id === stored.id);
  // A deliberation may name it, which refuses the deletion, or it has ended.
  if (!used) request(`/files/${stored.id}`, { method: "DELETE" }).catch(() => {});
}

/** The files of a drop; a folder is one that cannot be sent. */
function dropped({ items, files }) {
  const entries = [...items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry?.());
  return [...files].map((file, place) => (entries[place]?.isDirectory ? { file, fault: "It is a folder. Choose the files in it." } : { file }));
}

const holdsFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");

/** The listeners of an element on which files may be dropped or pasted. A paste that has a text, too, is one of text. */
export const taking = {
  onDragOver: (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.currentTarget.dataset.over = "";
  },
  onDragLeave: (event) => {
    if (!event.currentTarget.contains(event.relatedTarget)) delete event.currentTarget.dataset.over;
  },
  onDrop: (event) => {
    delete event.currentTarget.dataset.over;
    if (!holdsFiles(event)) return;
    event.preventDefault();
    take(dropped(event.dataTransfer));
  },
  onPaste: (event) => {
    const { types, files } = event.clipboardData;
    if (files.length === 0 || types.includes("text/plain")) return;
    event.preventDefault();
    take([...files].map((file) => ({ file })));
  },
};

const described = ({ kind, media_type: type, bytes, tokens, pages }) => [kind, type, size(bytes), ...(pages ? [plural(pages, "page")] : []), `about ${plural(tokens, "token")}`].join(" · ");

function Upload({ upload, faults, onRemove }) {
  const { name, bytes, share, stored, fault } = upload;
  const state = stored !== null ? described(stored) : fault ? size(bytes) : share === null ? `${size(bytes)} · waits` : share < 1 ? `${Math.round(share * 100)} % of ${size(bytes)}` : `${size(bytes)} · the gateway reads it`;
  return html`<li class="ev" data-file=${name}><div class="grow"><div class="clip" title=${name} dir="auto">${name}</div><div class="muted small anywhere">${state}</div>
      ${stored === null && !fault ? html`<${Bar} share=${share ?? 0} label=${`Upload of ${name}`} />` : ""}
      ${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}${faults.map((words) => html`<p class="fault" role="alert" key=${words}>${words}</p>`)}</div>
    <button class="btn bare sm" type="button" aria-label=${`Remove ${name}`} onClick=${() => onRemove(upload)}><${Icon} name="close" /></button></li>`;
}

/** The rows of the form's files. `faultsOf` gives what the gateway says against a stored one, by its place among these. */
export function Uploads({ faultsOf }) {
  const chooser = useRef(null);
  const button = useRef(null);
  const onRemove = (upload) => {
    remove(upload);
    button.current.focus();
  };
  let place = -1;
  return html`<ul aria-label="Files">${uploads.value.map((upload) => html`<${Upload} key=${upload.key} upload=${upload} onRemove=${onRemove} faults=${upload.stored === null ? [] : faultsOf((place += 1))} />`)}</ul>
    <div class="row files"><button class="btn sm" type="button" ref=${button} onClick=${() => chooser.current.click()}><${Icon} name="plus" />Choose files</button><span class="muted small">or drop or paste them here: text, PDF, docx, pictures</span>
      <input type="file" multiple hidden ref=${chooser} aria-label="Files" onChange=${({ target }) => { take([...target.files].map((file) => ({ file }))); target.value = ""; }} /></div>`;
}

const contentOf = ({ sha256 }) => `/files/${idOf(sha256)}/content`;

/** A picture as agents see it. A data URL, because the page's policy allows pictures from nowhere else. */
function Preview({ file }) {
  const [source, setSource] = useState(null);
  useEffect(() => {
    let over = false;
    const load = async () => {
      const response = await fetch(`${contentOf(file)}?form=prompt`);
      if (!response.ok) return;
      const reader = new FileReader();
      reader.onload = () => over || setSource(reader.result);
      reader.readAsDataURL(await response.blob());
    };
    // The link beside it says what is wrong.
    load().catch(() => {});
    return () => {
      over = true;
    };
  }, [file.sha256]);
  return source && html`<img class="preview" src=${source} alt=${file.name} />`;
}

/** A file of a deliberation: what it is, a link that saves it, and a picture small. */
export function Stored({ file }) {
  return html`<p class="small"><a class="link anywhere" href=${contentOf(file)} download=${file.name}><bdi>${file.name}</bdi></a> <span class="muted anywhere">${described(file)}</span></p>
    ${file.kind === "picture" && file.bytes <= PREVIEW_BYTES_MAX ? html`<${Preview} file=${file} />` : ""}`;
}

/** The task, of which the deliberation has only the beginning and the end where it is stored as a file. */
export async function wholeTask({ task, task_file: file }) {
  if (!file) return task;
  const response = await fetch(`${contentOf(file)}?form=prompt`);
  if (!response.ok) throw new Error(`The whole task, ${number(file.bytes)} bytes, cannot be read: the gateway answered ${response.status}.`);
  return response.text();
}

/** A piece of evidence as a request names it. */
export const asAsked = ({ id, title, text, file, source }) => ({ id, title, ...(text ? { text } : {}), ...(file ? { file: idOf(file.sha256) } : {}), ...(source ? { source } : {}) });
