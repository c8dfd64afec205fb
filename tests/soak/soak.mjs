// Several hundred clients at once against `weir serve`: they stream, hang up in the middle, come back
// with an edited history, ask too much, or send nonsense. In the end the ledger must be back where it
// was, no request stuck, memory flat, and every reply the one that its prompt gets alone.
//   node soak.mjs WEIR MODEL SECONDS [CLIENTS] [PREFIX...]   PREFIX: a command to start weir under
// WEIR_SOAK_MEMORY_LIMIT: bytes of anonymous memory that the server may never have.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { WeirServer } from "./weir_server.mjs";

const [weir, model, secondsText, clientsText = "300", ...prefix] = process.argv.slice(2);
const seconds = Number(secondsText);
const clients = Number(clientsText);
const kBudget = 24 * 1024 * 1024;
const kPrompts = 24;
const kQueueSeconds = 60;
// Nothing takes longer: the queue, and a reply of sixty tokens beside thirty others.
const kStuckSeconds = 2 * kQueueSeconds;
const memoryLimit = Number(process.env.WEIR_SOAK_MEMORY_LIMIT ?? Infinity);

const failures = [];
const fail = (what) => {
  if (failures.length < 20) console.error(`soak: ${what}`);
  failures.push(what);
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// --- the servers ----------------------------------------------------------------------------------

const serve = [weir, "serve", "-m", model, "-t", "1", "--grace", "5"];
const ended = (how) => {
  console.error(`soak: weir ended: ${how}`);
  process.exit(1);
};
const server = await WeirServer.start([...prefix, ...serve, "--kv-budget", String(kBudget), "--parallel", "32",
  "--queue", "400", "--queue-timeout", String(kQueueSeconds)], ended);
const startMemory = server.residentBytes();

// What a prompt gets alone and from nothing: each is a tenant's of its own, who finds no KV of others.
const kEditsKept = 40;
const keys = Array.from({ length: kPrompts + kEditsKept }, (_, i) => `key-${i}`);
const work = mkdtempSync(path.join(tmpdir(), "weir-soak-"));
writeFileSync(path.join(work, "keys"), keys.map((key, i) => `tenant-${i}:${key}\n`).join(""));
process.on("exit", () => rmSync(work, { recursive: true }));
const other = await WeirServer.start([...serve, "--kv-budget", "512MiB", "--api-key-file", path.join(work, "keys")], ended);

async function alone(request) {
  const { body } = await other.ask("/v1/chat/completions", request, { key: keys.shift() });
  const { text, finished, error } = streamed(body);
  if (!finished) fail(`no reply to a prompt alone: ${error ?? body.slice(-200)}`);
  return text;
}

// A request that must come to an end.
async function ask(where, body = null, hangUpAfter = Infinity) {
  const answer = await server.ask(where, body, { hangUpAfter, seconds: kStuckSeconds });
  if (answer.status === -1) {
    ++counts.stuck;
    fail(`no end after ${kStuckSeconds} s: ${where} ${JSON.stringify(body).slice(0, 200)}`);
  }
  return answer;
}

// --- requests -------------------------------------------------------------------------------------

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

const counts = { requests: 0, replies: 0, edits: 0, hangUps: 0, refused: 0, busy: 0, stuck: 0, crossed: 0 };

function compare(what, text, expectedText) {
  if (text === expectedText) return;
  ++counts.crossed;
  fail(`${what} got ${JSON.stringify(text)} for ${JSON.stringify(expectedText)}`);
}

// Some edited requests and what they got, to be compared in the end.
const edits = [];

const kinds = [
  // A reply to its end: the one that this prompt gets alone.
  async (random) => {
    const i = Math.floor(random() * kPrompts);
    const answer = await ask("/v1/chat/completions", requestOf(i));
    if (answer.status === 429 || answer.status === 503) return void ++counts.busy;
    const { text, finished, error } = answer.status === 200 ? streamed(answer.body) : {};
    if (!finished) return answer.status === -1 || fail(`prompt ${i} ended early: ${answer.status} ${error ?? answer.body.slice(-200)}`);
    compare(`prompt ${i}`, text, expected[i]);
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
    const { text, finished } = answer.status === 200 ? streamed(answer.body) : {};
    if (!finished) return answer.status === -1 || fail(`an edit ended early: ${answer.status} ${answer.body.slice(-200)}`);
    ++counts.edits;
    const place = edits.length < kEditsKept ? edits.length : Math.floor(random() * counts.edits);
    if (place < kEditsKept) edits[place] = { request, text };
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
  return JSON.parse((await ask("/v1/kv")).body);
}

const expected = [];
for (let i = 0; i < kPrompts; ++i) expected.push(await alone(requestOf(i)));
for (let i = 0; i < kPrompts; ++i) await ask("/v1/chat/completions", requestOf(i));
const warmMemory = server.residentBytes();
const warmKv = await ledger();

const end = Date.now() + seconds * 1000;
async function client(seed) {
  let state = (seed * 2654435761) >>> 0;
  const random = () => ((state = (state * 1664525 + 1013904223) >>> 0) / 4294967296);
  await sleep(random() * 2000);
  while (Date.now() < end) {
    const draw = random();
    ++counts.requests;
    await kinds[kWeights.findIndex((w) => draw < w)](random);
    await sleep(random() * 300);
  }
}

const memory = [];
async function watch() {
  while (Date.now() < end) {
    memory.push(server.residentBytes());
    if (memory.at(-1) > memoryLimit) fail(`${memory.at(-1)} bytes of memory, over ${memoryLimit}`);
    const kv = await ledger();
    const health = await ask("/health");
    if (health.status !== 200) fail(`not healthy: ${health.status} ${health.body}`);
    if (kv.used > kv.limit || kv.peak > kv.limit) fail(`KV over its limit: used ${kv.used}, peak ${kv.peak} of ${kv.limit}`);
    await sleep(1000);
  }
}

await Promise.all([watch(), ...Array.from({ length: clients }, (_, i) => client(i + 1))]);

// Everything has been answered or given up; what was cancelled ends with its step.
for (let i = 0; i < 50; ++i) {
  const metrics = (await ask("/metrics")).body;
  if (/weir_requests_running 0\n/.test(metrics) && /weir_requests_waiting 0\n/.test(metrics)) break;
  if (i === 49) fail("requests are stuck");
  await sleep(100);
}
const kv = await ledger();
for (const tag of ["live_global", "live_local", "step_headroom", "staging_in", "staging_out"]) {
  if (kv.by_tag[tag] !== 0) fail(`${kv.by_tag[tag]} bytes are still ${tag}`);
}
if ((await ask("/health")).status !== 200) fail("not healthy at the end");
for (let i = 0; i < kPrompts; i += 5) {
  const answer = await ask("/v1/chat/completions", requestOf(i));
  if (answer.status !== -1) compare(`after all, prompt ${i}`, streamed(answer.body).text, expected[i]);
}
for (const { request, text } of edits) compare("an edit", text, await alone(request));
// Memory of the second half against that of the second quarter, when everything is warm.
const half = Math.floor(memory.length / 2);
const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const before = most(memory.slice(Math.floor(half / 2), half)), after = most(memory.slice(half));
const kGrowth = 16 * 1024 * 1024;
if (after > before + kGrowth) fail(`memory grew from ${before} to ${after} bytes`);
if (counts.replies < clients / 4) fail(`only ${counts.replies} replies`);

const endMemory = server.residentBytes();
for (const one of [server, other]) {
  const how = await one.stop();
  if (how !== 0) fail(`weir ended with ${how}`);
}
const MiB = (bytes) => (bytes / 1048576).toFixed(1);
const kept = kv.by_tag.idle + kv.by_tag.restart;
console.log(`soak: ${clients} clients for ${seconds} s
  requests   ${counts.requests}: ${counts.replies} replies compared with what their prompts get alone,
             ${counts.edits} to edited histories (${edits.length} of them compared, too), ${counts.hangUps} hang-ups,
             ${counts.refused} refused as wrong, ${counts.busy} sent away as busy
  stuck      ${counts.stuck} of them had no end after ${kStuckSeconds} s
  crossed    ${counts.crossed} had another text than alone
  KV         peak ${MiB(kv.peak)} of ${MiB(kv.limit)} MiB; used ${MiB(warmKv.used)} MiB before, ${MiB(kv.used)} MiB after:
             ${MiB(kept)} MiB kept for return, ${kv.by_tag.live_global + kv.by_tag.live_local} bytes of requests
  memory     ${MiB(startMemory)} MiB at the start, ${MiB(warmMemory)} after each prompt once,
             most ${MiB(before)} in the second quarter, ${MiB(after)} in the second half, ${MiB(endMemory)} at the end
  failures   ${failures.length}`);
process.exit(failures.length ? 1 : 0);
