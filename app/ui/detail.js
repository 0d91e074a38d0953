/** One deliberation: the agents' texts as they stream, the progress, and the verdict. */

import { ENDS, follow, request } from "./gateway.js";
import { prose } from "./prose.js";

const find = (id) => document.getElementById(id);

/**
 * `text` with `piece` at its character `offset`, in code points, which the gateway counts. The page has no build step and
 * cannot import sdk/typescript/src/texts.ts.
 */
const place = (text, offset, piece) => [...text].slice(0, offset).join("") + piece;

const calls = (count) => `${count} call${count === 1 ? "" : "s"}`;

const costOf = ({ amount, currency, unpriced_calls }) =>
  `${amount} ${currency}${unpriced_calls ? `, without ${unpriced_calls} unpriced ${unpriced_calls === 1 ? "call" : "calls"}` : ""}`;

/** Shows the deliberation `id` and returns a function that ends it. `perRound` has the stages whose round is shown. */
export function showDeliberation(id, perRound, onStatus, onLogout) {
  const path = `/deliberations/${encodeURIComponent(id)}`;
  const lanes = new Map();
  const purposes = new Map();
  const texts = new Map();
  const dirty = new Set();
  let ended = false;

  const lane = (agentId) => {
    if (lanes.has(agentId)) return lanes.get(agentId);
    const box = document.createElement("section");
    box.className = "lane";
    box.append(document.createElement("h3"), document.createElement("p"), document.createElement("pre"));
    const [name, doing, pre] = box.children;
    name.textContent = agentId;
    find("lanes").append(box);
    const made = { name, doing, pre, text: "" };
    lanes.set(agentId, made);
    return made;
  };
  const draw = (agentId) => {
    if (dirty.size === 0) {
      requestAnimationFrame(() => {
        for (const each of dirty) {
          const { pre, text } = lane(each);
          const follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
          pre.textContent = prose(text);
          if (ended) pre.scrollTop = 0;
          else if (follows) pre.scrollTop = pre.scrollHeight;
        }
        dirty.clear();
      });
    }
    dirty.add(agentId);
  };
  /** The text of a call's newest attempt; see sdk/typescript/src/texts.ts. */
  const textOf = ({ call_id, attempt }) => {
    const known = texts.get(call_id);
    if (known !== undefined && (known.finished || known.attempt >= attempt)) return known;
    texts.set(call_id, { attempt, text: "", finished: false });
    return texts.get(call_id);
  };
  const startCall = ({ agent_id, call_id, attempt }) => {
    const made = lane(agent_id);
    made.text = textOf({ call_id, attempt }).text;
    made.doing.textContent = `${purposes.get(call_id) ?? "call"}${attempt > 1 ? `, attempt ${attempt}` : ""}`;
    draw(agent_id);
    return made;
  };

  const showResource = (resource) => {
    find("detail").querySelector("h2").textContent = resource.task;
    const usage = resource.usage;
    find("facts").textContent = [
      resource.strategy,
      resource.status,
      calls(usage.calls),
      `${(usage.prompt_tokens + usage.completion_tokens).toLocaleString()} tokens`,
      ...(usage.cost ? [costOf(usage.cost)] : []),
      ...(resource.degraded?.reasons ?? []),
    ].join(" · ");
    ended = ENDS.includes(resource.status);
    find("stop").hidden = ended || resource.status === "cancelling";
    for (const { agent_id, role, model } of resource.agents) {
      lane(agent_id).name.textContent = [agent_id, role, model].filter(Boolean).join(" · ");
    }
    for (const { agent_id, content, status, error } of resource.proposals) {
      const made = lane(agent_id);
      if (ended) made.doing.textContent = status === "answered" ? "" : (error?.detail ?? status);
      if (content === null || !(ended || made.text === "")) continue;
      made.text = content;
      draw(agent_id);
    }
    if (!ended) return;
    find("progress").textContent = resource.problem?.detail ?? "";
    showVerdict(resource.verdict);
  };
  const showVerdict = (verdict) => {
    find("verdict").hidden = verdict === null;
    if (verdict === null) return;
    const [table, notes, content] = find("verdict").querySelectorAll("tbody, p, pre");
    table.replaceChildren();
    for (const { rank, agent_id, score } of verdict.ranking) {
      const row = table.insertRow();
      const name = agent_id === verdict.winner ? `${agent_id} ★` : agent_id;
      for (const text of [rank, name, score === null ? "–" : score.toFixed(3)]) row.insertCell().textContent = text;
    }
    notes.textContent = [
      verdict.winner === null ? "no winner: answers side by side" : null,
      verdict.tie ? "a tie, broken by rule" : null,
      verdict.margin === null ? null : `margin ${verdict.margin.toFixed(3)}`,
      verdict.agreement === null ? null : `agreement ${verdict.agreement.toFixed(2)}`,
      ...verdict.dissent.map(({ agent_id, preferred }) => `${agent_id} preferred ${preferred}`),
    ].filter(Boolean).join(" · ");
    content.textContent = verdict.content ?? "";
  };

  const handlers = {
    "deliberation.snapshot": ({ deliberation, unfinished }) => {
      showResource(deliberation);
      for (const call of unfinished) {
        textOf(call).text = call.text;
        startCall(call);
      }
    },
    "stage.opened": ({ purpose, round, calls: planned }) => {
      for (const { call_id } of planned) purposes.set(call_id, purpose);
      const stage = round > 0 && perRound.has(purpose) ? `${purpose}, round ${round}` : purpose;
      find("progress").textContent = `${stage}: ${calls(planned.length)}`;
    },
    "call.started": startCall,
    "call.waiting": ({ agent_id, detail }) => {
      lane(agent_id).doing.textContent = detail;
    },
    "call.delta": ({ agent_id, call_id, attempt, offset, text }) => {
      const known = textOf({ call_id, attempt });
      if (known.finished || known.attempt !== attempt) return;
      known.text = lane(agent_id).text = place(known.text, offset, text);
      draw(agent_id);
    },
    "call.finished": ({ agent_id, call_id, attempt, text, problem }) => {
      const made = lane(agent_id);
      textOf({ call_id, attempt }).finished = true;
      made.doing.textContent = problem === null ? `${purposes.get(call_id) ?? "call"}: done` : problem.detail;
      if (text === null) return;
      made.text = text;
      draw(agent_id);
    },
    "deliberation.cancelling": () => {
      find("progress").textContent = "stopping";
      find("stop").hidden = true;
    },
    "deliberation.deleted": () => {
      find("progress").textContent = "deleted";
      end();
    },
  };
  for (const name of ENDS) {
    handlers[`deliberation.${name}`] = async () => {
      end();
      try {
        showResource(await request(path));
      } catch (error) {
        find("progress").textContent = error.message;
      }
    };
  }

  find("lanes").replaceChildren();
  find("verdict").hidden = true;
  for (const each of [find("detail").querySelector("h2"), find("facts"), find("progress")]) each.textContent = "";
  find("detail").hidden = false;
  find("stop").onclick = async () => {
    try {
      showResource(await request(`${path}/cancel`, { method: "POST", body: { reason: "stopped from the dashboard" } }));
    } catch (error) {
      find("progress").textContent = error.message;
    }
  };
  const end = follow(`${path}/events`, handlers, onStatus, onLogout);
  // A refused stream has no reason, so this request shows the error of a deleted or unknown deliberation.
  request(path).catch((error) => {
    end();
    find("progress").textContent = error.message;
  });
  return end;
}
