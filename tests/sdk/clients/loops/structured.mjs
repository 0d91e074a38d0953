// Answers of a schema by the AI SDK, each after a call of a tool.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const [url, task] = process.argv.slice(1);
const baseURL = `${url}/v1`;
const called = [];
const add = tool({
  description: "Add two integers.",
  inputSchema: z.object({ a: z.int(), b: z.int() }),
  execute: ({ a, b }) => {
    called.push(["add", a, b]);
    return a + b;
  },
});
const output = Output.object({ schema: z.object({ value: z.int(), words: z.string() }) });

function asked(model) {
  return { model, tools: { add }, output, prompt: task, stopWhen: isStepCount(9), maxRetries: 0 };
}

const chat = createOpenAICompatible({ name: "gateway", baseURL, supportsStructuredOutputs: true })("vote/DEV");
const responses = createOpenAI({ baseURL, apiKey: "unused" }).responses("vote/DEV");
const told = {};
for (const [name, model] of [
  ["chat", chat],
  ["responses", responses],
]) {
  for (const [asking, end] of [
    [generateText, ""],
    [streamText, ", streamed"],
  ]) {
    called.length = 0;
    const answer = await (await asking(asked(model))).output;
    told[`${name}${end}`] = { called: [...called], answer };
  }
}
console.log(JSON.stringify(told));
