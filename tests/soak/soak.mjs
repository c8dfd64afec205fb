// Several hundred clients at once against `weir serve`: they stream, hang up in the middle, come back
// with an edited history, ask too much, or send nonsense. In the end the ledger must be back where it
// was, no request stuck, memory flat, and every reply the one that its prompt gets alone.
//   node soak.mjs WEIR MODEL SECONDS [CLIENTS] [PREFIX...]   PREFIX: a command to start weir under
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";

const [weir, model, secondsText, clientsText = "300", ...prefix] = process.argv.slice(2);
const seconds = Number(secondsText);
const clients = Number(clientsText);
const kBudget = 24 * 1024 * 1024;
const kPrompts = 24;

const failures = [];
const fail = (what) => {
  if (failures.length < 20) console.error(`soak: ${what}`);
  failures.push(what);
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// --- the server -----------------------------------------------------------------------------------

const args = ["serve", "-m", model, "--port", "0", "-t", "1", "--kv-budget", String(kBudget), "--parallel", "32",
  "--queue", "400", "--queue-timeout", "120", "--grace", "5"];
const command = [...prefix, weir, ...args];
const server = spawn(command[0], command.slice(1), { stdio: ["ignore", "pipe", "inherit"] });
const exited = new Promise((resolve) => server.on("exit", (code, signal) => resolve(signal ?? code)));
const port = await new Promise((resolve, reject) => {
  let text = "";
  server.stdout.on("data", (bytes) => {
    text += bytes;
    const found = text.match(/listening on http:\/\/[^:]+:(\d+)/);
    if (found) resolve(Number(found[1]));
  });
  exited.then((how) => reject(new Error(`weir ended before it listened: ${how}`)));
});

// Resident bytes of weir, of anonymous memory: pages of the mapped file come and go as the system likes.
function residentBytes() {
  const pid = prefix.length === 0 ? server.pid : Number(readFileSync(`/proc/${server.pid}/task/${server.pid}/children`, "utf8").trim() || server.pid);
  return Number(readFileSync(`/proc/${pid}/status`, "utf8").match(/^RssAnon:\s+(\d+)/m)[1]) * 1024;
}

// --- requests -------------------------------------------------------------------------------------

const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });

// Resolves to { status, body }; `hangUpAfter` bytes of the answer, or never.
function ask(path, body, hangUpAfter = Infinity) {
  return new Promise((resolve) => {
    const request = http.request({ host: "127.0.0.1", port, path, method: body === null ? "GET" : "POST", agent,
      headers: { "content-type": "application/json" } }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (piece) => {
        text += piece;
        if (text.length > hangUpAfter) request.destroy();
      });
      response.on("end", () => resolve({ status: response.statusCode, body: text }));
      response.on("error", () => resolve({ status: 0, body: text }));
      response.on("close", () => resolve({ status: 0, body: text }));
    });
    request.on("error", () => resolve({ status: 0, body: "" }));
    if (body !== null) request.write(typeof body === "string" ? body : JSON.stringify(body));
    request.end();
  });
}

// The text of a streamed completion, and whether it came to its end.
function streamed(body) {
  let text = "", finished = false, error = null;
  for (const line of body.split("\n")) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const event = JSON.parse(line.slice(6));
    if (event.error) error = event.error.message;
    const choice = event.choices?.[0];
    if (choice) {
      text += choice.delta?.content ?? "";
      if (choice.finish_reason) finished = true;
    }
  }
  return { text, finished, error };
}

const kNames = ["Ada", "Bruno", "Clara", "David", "Emma", "Felix", "Grete", "Hugo"];
const kThings = ["a bear", "a ship", "a king", "a mouse", "the sea", "a garden"];
const system = { role: "system", content: "You like to tell stories about animals and the sea. ".repeat(6) };

function messagesOf(i) {
  const messages = [system, { role: "user", content: `My name is ${kNames[i % kNames.length]}.` },
    { role: "assistant", content: "Nice to meet you!" }];
  for (let turn = 0; turn < 1 + (i % 4); ++turn) {
    messages.push({ role: "user", content: `Tell me a story about ${kThings[(i + turn) % kThings.length]}.` },
      { role: "assistant", content: `Once upon a time there was ${kThings[(i + turn) % kThings.length]}. `.repeat(3 + (i % 5)) });
  }
  messages.push({ role: "user", content: i % 2 ? "What is my name?" : `Tell me about ${kThings[i % kThings.length]}.` });
  return messages;
}

const requestOf = (i) => ({ messages: messagesOf(i), max_tokens: 24 + (i % 3) * 12, temperature: 0, stream: true,
  ...(i % 3 === 0 ? { conversation: `talk ${i}` } : {}) });

const counts = { replies: 0, hangUps: 0, refused: 0, busy: 0 };

const kinds = [
  // A reply to its end: the one that this prompt gets alone.
  async (random) => {
    const i = Math.floor(random() * kPrompts);
    const answer = await ask("/v1/chat/completions", requestOf(i));
    if (answer.status === 429 || answer.status === 503) return void ++counts.busy;
    const { text, finished, error } = answer.status === 200 ? streamed(answer.body) : {};
    if (!finished) return fail(`prompt ${i} ended early: ${answer.status} ${error ?? answer.body.slice(-200)}`);
    if (text !== expected[i]) fail(`prompt ${i} got ${JSON.stringify(text)} for ${JSON.stringify(expected[i])}`);
    ++counts.replies;
  },
  async (random) => {
    await ask("/v1/chat/completions", requestOf(Math.floor(random() * kPrompts)), 200 + random() * 3000);
    ++counts.hangUps;
  },
  async (random) => {  // an edited history
    const request = requestOf(Math.floor(random() * kPrompts));
    const at = 1 + Math.floor(random() * (request.messages.length - 2));
    request.messages[at] = { ...request.messages[at], content: `Something else, ${Math.floor(random() * 50)}.` };
    const answer = await ask("/v1/chat/completions", request);
    if (answer.status === 429 || answer.status === 503) return void ++counts.busy;
    if (answer.status !== 200 || !streamed(answer.body).finished)
      fail(`an edit ended early: ${answer.status} ${answer.body.slice(-200)}`);
    ++counts.replies;
  },
  async () => {  // more than any context
    const answer = await ask("/v1/chat/completions", { messages: [{ role: "user", content: "story ".repeat(6000) }] });
    if (![400, 429, 503].includes(answer.status)) fail(`too long a prompt: ${answer.status} ${answer.body.slice(0, 200)}`);
    ++counts.refused;
  },
  async (random) => {  // nonsense
    const bodies = ["{", "[]", '{"messages": 7}', '{"messages":[{"role":"user","content":"x"}],"temperature":1e999}', "\xff\xfe"];
    const answer = await ask("/v1/chat/completions", bodies[Math.floor(random() * bodies.length)]);
    if (![400, 429, 503].includes(answer.status)) fail(`nonsense: ${answer.status} ${answer.body.slice(0, 200)}`);
    ++counts.refused;
  },
];
const kWeights = [0.5, 0.7, 0.85, 0.95, 1];

// --- the run --------------------------------------------------------------------------------------

async function ledger() {
  return JSON.parse((await ask("/v1/kv", null)).body);
}

const expected = [];
for (let i = 0; i < kPrompts; ++i) expected.push(streamed((await ask("/v1/chat/completions", requestOf(i))).body).text);
if (expected.some((text) => text === "")) fail("a prompt has no reply");

const end = Date.now() + seconds * 1000;
async function client(seed) {
  let state = (seed * 2654435761) >>> 0;
  const random = () => ((state = (state * 1664525 + 1013904223) >>> 0) / 4294967296);
  await sleep(random() * 2000);
  while (Date.now() < end) {
    const draw = random();
    await kinds[kWeights.findIndex((w) => draw < w)](random);
    await sleep(random() * 300);
  }
}

const memory = [];
async function watch() {
  while (Date.now() < end) {
    memory.push(residentBytes());
    const kv = await ledger();
    if (kv.used > kv.limit || kv.peak > kv.limit) fail(`KV over its limit: used ${kv.used}, peak ${kv.peak} of ${kv.limit}`);
    await sleep(1000);
  }
}

await Promise.all([watch(), ...Array.from({ length: clients }, (_, i) => client(i + 1))]);

// Everything has been answered or given up; what was cancelled ends with its step.
for (let i = 0; i < 50; ++i) {
  const metrics = (await ask("/metrics", null)).body;
  if (/weir_requests_running 0\n/.test(metrics) && /weir_requests_waiting 0\n/.test(metrics)) break;
  if (i === 49) fail("requests are stuck");
  await sleep(100);
}
const kv = await ledger();
for (const tag of ["live_global", "live_local", "step_headroom", "staging_in", "staging_out"]) {
  if (kv.by_tag[tag] !== 0) fail(`${kv.by_tag[tag]} bytes are still ${tag}`);
}
if ((await ask("/health", null)).status !== 200) fail("not healthy at the end");
for (let i = 0; i < kPrompts; i += 5) {
  const { text } = streamed((await ask("/v1/chat/completions", requestOf(i))).body);
  if (text !== expected[i]) fail(`after all, prompt ${i} gets ${JSON.stringify(text)}`);
}
// Memory of the second half against that of the second quarter, when everything is warm.
const half = Math.floor(memory.length / 2);
const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const before = most(memory.slice(Math.floor(half / 2), half)), after = most(memory.slice(half));
const kGrowth = 16 * 1024 * 1024;
if (after > before + kGrowth) fail(`memory grew from ${before} to ${after} bytes`);
if (counts.replies < clients / 4) fail(`only ${counts.replies} replies`);

server.kill("SIGTERM");
const how = await exited;
if (how !== 0) fail(`weir ended with ${how}`);
agent.destroy();
const MiB = (bytes) => (bytes / 1048576).toFixed(1);
console.log(`${clients} clients, ${seconds} s: ${counts.replies} replies, ${counts.hangUps} hang-ups, ` +
  `${counts.refused} refused, ${counts.busy} sent away as busy; KV peak ${MiB(kv.peak)} of ${MiB(kv.limit)} MiB, ` +
  `memory ${MiB(before)} then ${MiB(after)} MiB; ${failures.length} failures`);
process.exit(failures.length ? 1 : 0);
