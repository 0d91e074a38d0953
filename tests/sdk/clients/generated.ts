// The client that openapi-generator writes for TypeScript: a council is asked, read, listed and refused.
import { Configuration, DeliberationsApi, ResponseError } from "./client";

const [basePath] = process.argv.slice(2);
const headers = { Accept: "application/json" };
const api = new DeliberationsApi(new Configuration({ basePath, accessToken: "none", headers }));
const deliberationRequest = { task: "Name a colour.", strategy: "vote" as const, numAgents: 3, seed: 7 };
const asked = await api.createDeliberationRaw({ deliberationRequest, prefer: "wait=60" });
const whole = await asked.raw.clone().json();
const read = await (await api.getDeliberationRaw({ deliberationId: whole.id })).raw.clone().json();
const { items } = await api.listDeliberations({ limit: 1, after: "now" });
const refused = await api
  .getDeliberation({ deliberationId: "nothing" })
  .catch((error: ResponseError) => error.response.status);
const same = [JSON.stringify(whole.verdict) === JSON.stringify(read.verdict), whole.id === items[0]?.id];
console.log(JSON.stringify({ status: whole.status, same, refused }));
