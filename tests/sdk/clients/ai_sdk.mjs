// The AI SDK with its provider for compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText } from "ai";
import { z } from "zod";

const gateway = createOpenAICompatible({
  name: "gateway",
  baseURL: `${process.argv[1]}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: gateway("single/DEV"), prompt: "Name a colour.", seed: 7, maxRetries: 0 };

const whole = await generateText(asked);
const stream = streamText(asked);
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
const schema = z.object({ name: z.string(), warm: z.boolean(), mixedFrom: z.array(z.string()) });
const { object } = await generateObject({ ...asked, schema });
const refused = await generateText({ ...asked, model: gateway("nobody/NONE") }).catch((error) => error.statusCode);

console.log(
  JSON.stringify({
    whole: whole.text,
    finish: whole.finishReason,
    streamed,
    reasoning: await stream.reasoningText,
    usage: await stream.usage,
    object: Object.keys(object),
    refused,
  }),
);
