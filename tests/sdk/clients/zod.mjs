// OpenAI's JavaScript client with a schema of zod.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const Plan = z.object({
  goal: z.string(),
  due: z.iso.date().nullable(),
  risk: z.enum(["low", "high"]),
  steps: z.array(
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("work"), title: z.string() }),
      z.object({ kind: z.literal("wait"), days: z.int().min(1) }),
    ]),
  ),
});

const client = new OpenAI({ baseURL: `${process.argv[1]}/v1`, apiKey: "unused", maxRetries: 0 });
const completion = await client.chat.completions.parse({
  model: "single/DEV",
  messages: [{ role: "user", content: "Plan a week." }],
  response_format: zodResponseFormat(Plan, "plan"),
});
console.log(JSON.stringify(Object.keys(completion.choices[0].message.parsed)));
