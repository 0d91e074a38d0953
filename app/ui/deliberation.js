/** One deliberation: loads it with its recorded events, follows it while it runs, and shows it as it is. */

import { Council } from "./council.js";
import { Done } from "./done.js";
import { ENDS, Refused, recorded, request } from "./gateway.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { watch } from "./live.js";
import { notify } from "./notice.js";
import { tell } from "./parts.js";
import { address, of, useTitle } from "./router.js";
import { Running } from "./running.js";
import { stateInWords } from "./sentences.js";
import { question } from "./words.js";

const DRAW_MS = 120;
const FIGURES_MS = 300;
const RETRY_MS = 2_000;

/** Keeps { resource, council, fault } of a deliberation up to date; `council` is null where its facts are gone. */
function useDeliberation(id) {
  const [, draw] = useState(0);
  const held = useRef({ resource: null, council: null, fault: "", gone: false }).current;
  useEffect(() => {
    let over = false;
    let leave = () => {};
    let drawing = null;
    let asking = null;
    let retrying = null;
    const path = `/deliberations/${encodeURIComponent(id)}`;
    // A hidden tab draws nothing: it catches up when it is seen again.
    const show = () => {
      if (!over && !document.hidden) draw((count) => count + 1);
    };
    const soon = () => {
      drawing ??= setTimeout(() => requestAnimationFrame(() => {
        drawing = null;
        show();
      }), DRAW_MS);
    };
    const load = async () => {
      held.resource = await request(path);
      show();
    };
    const figures = () => {
      if (document.hidden) return;
      asking ??= setTimeout(() => {
        asking = null;
        load().catch(() => {});
      }, FIGURES_MS);
    };
    const seen = () => {
      soon();
      if (held.council && !ENDS.includes(held.resource.status)) figures();
    };
    const onEvent = (event) => {
      held.council.apply(event);
      if (event.type === "stage.opened") tell(`${event.purpose}: ${event.calls.length} calls.`);
      if (event.type === "deliberation.deleted") {
        held.fault = "This deliberation was deleted.";
        leave();
      } else if (ENDS.some((name) => event.type === `deliberation.${name}`)) {
        leave();
        tell(event.type.replace("deliberation.", "The deliberation ended: "));
        load().then(() => notify(stateInWords(held.resource), question(held.resource.task).slice(0, 120), of(id)), restart);
      } else if (event.type !== "call.delta") figures();
      soon();
    };
    const start = async () => {
      const resource = await request(path);
      const facts = await recorded(id, { deltas: !ENDS.includes(resource.status) }).catch((error) => {
        // The facts live shorter than an archived deliberation.
        if (error instanceof Refused && [404, 410].includes(error.status)) return null;
        throw error;
      });
      if (over) return;
      Object.assign(held, { resource, council: facts && facts.events.length ? new Council(facts.events) : null, fault: "" });
      show();
      if (ENDS.includes(resource.status)) return;
      held.council ??= new Council();
      leave = watch(id, facts?.cursor ?? "0", { onEvent, onGap: restart, onRefused: () => load().then(stopIfEnded, restart) });
      // It may have ended between both answers.
      if (ENDS.some((name) => held.council.events.at(-1)?.type === `deliberation.${name}`)) {
        leave();
        await load();
      }
    };
    const stopIfEnded = () => {
      if (!ENDS.includes(held.resource.status)) return;
      leave();
      start().catch(restart);
    };
    const restart = (error) => {
      leave();
      if (over) return;
      if (error instanceof Refused) {
        held.fault = error.message;
        held.gone = error.status === 404;
        show();
        return;
      }
      if (error instanceof Error) held.fault = held.resource ? "" : error.message;
      show();
      retrying = setTimeout(() => start().catch(restart), RETRY_MS);
    };
    start().catch(restart);
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      leave();
      for (const timer of [drawing, asking, retrying]) clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [id]);
  return held;
}

export function Deliberation({ id }) {
  const { resource, council: growing, fault } = useDeliberation(id);
  // Another object for each state: components that get the same one are not drawn again.
  const council = useMemo(() => growing && Object.assign(new Council(), growing), [growing, growing?.version]);
  useTitle(resource ? `${stateInWords(resource)}: ${question(resource.task).slice(0, 80)}` : "Deliberation");
  if (fault) return html`<div class="wrap"><h1>Not shown</h1><p class="fault" role="alert">${fault}</p><p class="foot"><a class="btn" href=${address("deliberations")}>All deliberations</a></p></div>`;
  if (resource === null) return html`<div class="wrap"><p class="muted" role="status">Loading …</p></div>`;
  return ENDS.includes(resource.status) ? html`<${Done} resource=${resource} council=${council} />` : html`<${Running} resource=${resource} council=${council} />`;
}
