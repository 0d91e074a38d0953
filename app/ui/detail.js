/** One deliberation: what its agents say as they say it, how far it is, and the verdict. */

import { asked, ENDS, followed } from "./gateway.js";
import { prose } from "./prose.js";

const find = (id) => document.getElementById(id);

/** A text that grows by pieces which begin at a character: code points, where JavaScript's strings count UTF-16. */
class Text {
  #text = "";
  #characters = 0;

  put(offset, piece) {
    if (offset !== this.#characters) this.#text = [...this.#text].slice(0, offset).join("");
    this.#text += piece;
    this.#characters = offset + [...piece].length;
  }

  toString() {
    return this.#text;
  }
}

/** Shows the deliberation `id`; returns what ends it. */
export function shown(id, said, refused) {
  const path = `/deliberations/${encodeURIComponent(id)}`;
  const lanes = new Map();
  const purposes = new Map();
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
    const made = { name, doing, pre, text: new Text() };
    lanes.set(agentId, made);
    return made;
  };
  const draw = (agentId) => {
    if (dirty.size === 0) {
      requestAnimationFrame(() => {
        for (const each of dirty) {
          const { pre, text } = lane(each);
          const follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
          pre.textContent = prose(String(text));
          if (ended) pre.scrollTop = 0;
          else if (follows) pre.scrollTop = pre.scrollHeight;
        }
        dirty.clear();
      });
    }
    dirty.add(agentId);
  };
  const begin = ({ agent_id, call_id, attempt }) => {
    const made = lane(agent_id);
    made.text = new Text();
    made.doing.textContent = `${purposes.get(call_id) ?? "call"}${attempt > 1 ? `, attempt ${attempt}` : ""}`;
    draw(agent_id);
    return made;
  };

  const told = (resource) => {
    find("detail").querySelector("h2").textContent = resource.task;
    const usage = resource.usage;
    find("facts").textContent = [
      resource.strategy,
      resource.status,
      `${usage.calls} calls`,
      `${(usage.prompt_tokens + usage.completion_tokens).toLocaleString()} tokens`,
      ...(resource.degraded?.reasons ?? []),
    ].join(" · ");
    ended = ENDS.includes(resource.status);
    find("stop").hidden = ended || resource.status === "cancelling";
    for (const { agent_id, role, model } of resource.agents) {
      lane(agent_id).name.textContent = [agent_id, role, model].filter(Boolean).join(" · ");
    }
    for (const { agent_id, content } of resource.proposals) {
      const made = lane(agent_id);
      if (ended) made.doing.textContent = "";
      if (content === null || !(ended || String(made.text) === "")) continue;
      made.text = new Text();
      made.text.put(0, content);
      draw(agent_id);
    }
    if (!ended) return;
    find("progress").textContent = resource.problem?.detail ?? "";
    judged(resource.verdict);
  };
  const judged = (verdict) => {
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
      verdict.tie ? "a tie, broken as the rules say" : null,
      verdict.margin === null ? null : `margin ${verdict.margin.toFixed(3)}`,
      verdict.agreement === null ? null : `agreement ${verdict.agreement.toFixed(2)}`,
      ...verdict.dissent.map(({ agent_id, preferred }) => `${agent_id} preferred ${preferred}`),
    ].filter(Boolean).join(" · ");
    content.textContent = verdict.content ?? "";
  };

  const heard = {
    "deliberation.snapshot": ({ deliberation, unfinished }) => {
      told(deliberation);
      for (const call of unfinished) {
        begin(call).text.put(call.offset - [...call.text].length, call.text);
        draw(call.agent_id);
      }
    },
    "stage.opened": ({ purpose, round, calls }) => {
      for (const { call_id } of calls) purposes.set(call_id, purpose);
      find("progress").textContent = `${purpose}${round > 0 ? `, round ${round}` : ""}: ${calls.length} calls`;
    },
    "call.started": begin,
    "call.delta": ({ agent_id, offset, text }) => {
      lane(agent_id).text.put(offset, text);
      draw(agent_id);
    },
    "call.finished": ({ agent_id, call_id, text, problem }) => {
      const made = lane(agent_id);
      made.doing.textContent = problem === null ? `${purposes.get(call_id) ?? "call"}: done` : problem.detail;
      if (text === null) return;
      made.text = new Text();
      made.text.put(0, text);
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
    heard[`deliberation.${name}`] = async () => {
      end();
      try {
        told(await asked(path));
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
      told(await asked(`${path}/cancel`, { method: "POST", body: { reason: "stopped from the dashboard" } }));
    } catch (error) {
      find("progress").textContent = error.message;
    }
  };
  const end = followed(`${path}/events`, heard, said, refused);
  // A stream that is refused says nothing of why: whoever follows a link to what is gone is told so.
  asked(path).catch((error) => {
    end();
    find("progress").textContent = error.message;
  });
  return end;
}
