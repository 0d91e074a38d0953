// The ways of OpenAI's JavaScript client to ask for a completion, in Node and in browsers.

const body = { model: "single/DEV", messages: [{ role: "user", content: "Name a colour." }], seed: 7 };

export async function ask(OpenAI, url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, dangerouslyAllowBrowser: true });
  const completions = client.chat.completions;
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);

  const { data: whole, response } = await completions.create(body).withResponse();
  const stream = await completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);

  return {
    models,
    whole: whole.choices[0].message.content,
    deliberation: response.headers.get("x-deliberation-id"),
    streamed: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
    usage: chunks.at(-1).usage,
    gathered: await completions.stream(body).finalContent(),
    refused: await completions
      .create({ ...body, model: "nobody/NONE" })
      .catch((error) => [error instanceof OpenAI.NotFoundError, error.status, error.code, error.param]),
  };
}
