// The AI SDK, over chat completions by its provider for compatible servers, and over Responses by OpenAI's.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [url, task] = process.argv.slice(1);
const baseURL = `${url}/v1`;
const called = [];
const inputSchema = z.object({ a: z.int(), b: z.int() });

function named(name, compute) {
  const execute = ({ a, b }) => {
    called.push([name, a, b]);
    return compute(a, b);
  };
  return tool({ description: `${name} of two integers`, inputSchema, execute });
}

const tools = {
  add: named("add", (a, b) => a + b),
  multiply: named("multiply", (a, b) => a * b),
  divide: named("divide", (a, b) => {
    if (b === 0) throw new Error("division by zero");
    return a / b;
  }),
};

async function whole(model) {
  return (await generateText({ model, tools, prompt: task, stopWhen: isStepCount(9), maxRetries: 0 })).text;
}

async function streamed(model) {
  let said = "";
  for await (const piece of streamText({ model, tools, prompt: task, stopWhen: isStepCount(9), maxRetries: 0 }).textStream)
    said += piece;
  return said;
}

const chat = createOpenAICompatible({ name: "gateway", baseURL })("vote/DEV");
const responses = createOpenAI({ baseURL, apiKey: "unused" }).responses("vote/DEV");
const told = {};
for (const [name, loop, model] of [
  ["chat", whole, chat],
  ["chat, streamed", streamed, chat],
  ["responses", whole, responses],
  ["responses, streamed", streamed, responses],
]) {
  called.length = 0;
  const answer = await loop(model);
  told[name] = { called: [...called], answer };
}
console.log(JSON.stringify(told));
