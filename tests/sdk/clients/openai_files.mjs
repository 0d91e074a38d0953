// Uploads a file, and asks about it and a picture through both APIs; prints the ids of the answers and the file's text.
import OpenAI, { toFile } from "openai";

const [url, picture] = process.argv.slice(1);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const model = "single/DEV";
const file = await client.files.create({
  file: await toFile(Buffer.from("Sales of March: 12.\n"), "notes.txt"),
  purpose: "user_data",
});
const text = await (await client.files.content(file.id)).text();
const chat = await client.chat.completions.create({
  model,
  messages: [
    {
      role: "user",
      content: [
        { type: "text", text: "Compare" },
        { type: "image_url", image_url: { url: picture } },
        { type: "file", file: { file_id: file.id } },
      ],
    },
  ],
});
const response = await client.responses.create({
  model,
  input: [
    {
      role: "user",
      content: [
        { type: "input_text", text: "Compare" },
        { type: "input_image", image_url: picture, detail: "auto" },
        { type: "input_file", file_id: file.id },
      ],
    },
  ],
});
console.log(JSON.stringify({ text, ids: [chat.id, response.id], answers: [chat.choices[0].message.content, response.output_text] }));
