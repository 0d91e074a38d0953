/** Decodes server-sent events as the HTML standard defines them (§9.2.6). */

/** One block of the stream. `data` is empty in a block that only moves the cursor or sets `retryMs`. */
export interface Frame {
  readonly event: string;
  readonly data: string;
  readonly id: string | null;
  readonly retryMs: number | null;
}

/** Converts chunks of bytes, split anywhere, into frames. */
export class SseDecoder {
  readonly #text = new TextDecoder(); // removes a byte order mark
  #rest = "";
  #afterCr = false;
  #fields: [name: string, value: string][] = [];

  /** The frames that this chunk completes. */
  feed(chunk: Uint8Array): Frame[] {
    let text = this.#text.decode(chunk, { stream: true });
    if (text === "") return [];
    if (this.#afterCr && text.startsWith("\n")) text = text.slice(1);
    this.#afterCr = text.endsWith("\r");
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() ?? "";
    const frames: Frame[] = [];
    for (const line of lines) {
      if (line !== "") this.#read(line);
      else if (this.#fields.length > 0) frames.push(this.#dispatch());
    }
    return frames;
  }

  #read(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    if (name === "") return; // a line that begins with a colon is a comment
    const value = colon < 0 ? "" : line.slice(colon + 1);
    this.#fields.push([name, value.startsWith(" ") ? value.slice(1) : value]);
  }

  #dispatch(): Frame {
    const fields = this.#fields;
    this.#fields = [];
    const single = new Map(fields);
    const id = single.get("id");
    const retry = single.get("retry") ?? "";
    return {
      event: single.get("event") || "message",
      data: fields
        .filter(([name]) => name === "data")
        .map(([, value]) => value)
        .join("\n"),
      id: id === undefined || id.includes("\0") ? null : id,
      retryMs: /^[0-9]+$/.test(retry) ? Number(retry) : null,
    };
  }
}
