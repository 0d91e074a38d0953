/** Three tasks to start from, each with the council and the strategy that suit it. */

export const CASES = [
  {
    name: "basic",
    summary: "Five agents answer, and equal answers are counted.",
    request: { task: "How many primes are below 10,000? Answer with a number.", agents: [{ role: "DEV", count: 5 }], strategy: "vote", parameters: { normaliser: "number" } },
  },
  {
    name: "medium",
    summary: "Four agents propose, criticise, revise and score.",
    request: {
      task: "Choose a job queue: Postgres LISTEN/NOTIFY or NATS JetStream?\n2,000 jobs/s at peak, two engineers, Postgres 17 is already in place. Name what would make you change your mind.",
      agents: [{ role: "ARCHITECT", count: 1 }, { role: "DEV", count: 2 }, { role: "DATA", count: 1 }], strategy: "council", rounds: 2,
    },
  },
  {
    name: "complex",
    summary: "Six agents meet in pairs, and judges compare each pair.",
    request: {
      task: "Design the retries of a payment API: a bank may time out after it has booked. No payment may be lost or made twice.\nName the states, who may repeat what, and how an operator finds a stuck payment.",
      agents: [{ role: "ARCHITECT", count: 2 }, { role: "DEV", count: 2 }, { role: "QA", count: 1 }, { role: "DEVOPS", count: 1 }], strategy: "tournament", parameters: { format: "swiss" },
    },
  },
];

/** The first of the tenant's roles that are missing from a case stand in for them. */
export function fitting(request, roles) {
  const known = new Set(roles.map(({ name }) => name));
  const counts = new Map();
  for (const { role, count } of request.agents) {
    const name = known.has(role) ? role : roles[0]?.name ?? role;
    counts.set(name, (counts.get(name) ?? 0) + count);
  }
  return { ...request, agents: [...counts].map(([role, count]) => ({ role, count })) };
}

// `crypto.randomUUID` exists only on https and on localhost.
export const randomKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
