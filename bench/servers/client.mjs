// Requests as both servers understand them, and what came of them.

async function post(url, path, body, signal) {
  const response = await fetch(url + path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response;
}

export async function tokenize(url, text) {
  const response = await post(url, "/tokenize", { content: text, add_special: false });
  return (await response.json()).tokens.map((t) => (typeof t === "number" ? t : t.id));
}

// Payloads of the "data:" lines of a stream.
async function* events(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of response.body) {
    rest += decoder.decode(bytes, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

// Streams a chat completion. Returns { text, promptTokens, readTokens, ttft, gaps }: tokens of the
// prompt, those of them that the server had to read (it says how many it did not), milliseconds to
// the first token and between tokens.
export async function chat(url, messages, options = {}) {
  const start = performance.now();
  const response = await post(
    url,
    "/v1/chat/completions",
    {
      messages,
      max_tokens: options.maxTokens ?? 16,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
      logit_bias: options.logitBias,
      ...options.extra,
    },
    options.signal,
  );
  const result = { text: "", promptTokens: 0, readTokens: 0, ttft: 0, gaps: [] };
  let last = 0;
  for await (const event of events(response)) {
    if (event.error) throw new Error(JSON.stringify(event.error));
    const delta = event.choices?.[0]?.delta;
    const piece = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
    if (piece) {
      const now = performance.now();
      if (last) result.gaps.push(now - last);
      else result.ttft = now - start;
      last = now;
      result.text += piece;
      options.onToken?.(result);
    }
    if (event.usage) {
      result.promptTokens = event.usage.prompt_tokens;
      result.readTokens = event.usage.prompt_tokens - (event.usage.prompt_tokens_details?.cached_tokens ?? 0);
    }
  }
  return result;
}
