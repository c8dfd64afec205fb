// Drives weir and llama-server, one after the other, with the same scripted conversations over the
// same model file, and prints what each had to read again, how long it took and what it held.
import { parseArgs } from "node:util";
import { chat, tokenize } from "./client.mjs";
import { ServerProcess } from "./server_process.mjs";
import { beside, inTurn, rewind, shared, skippedSave } from "./scenarios.mjs";

const { values: options } = parseArgs({
  options: {
    weir: { type: "string" }, // the programs
    llama: { type: "string" },
    model: { type: "string" },
    scenario: { type: "string", default: "rewind" },
    tokens: { type: "string" },
    count: { type: "string" },
    context: { type: "string", default: "20480" },
    budget: { type: "string", default: "1GiB" }, // weir's --kv-budget
    threads: { type: "string", default: "2" },
    logs: { type: "string", default: "." },
    "weir-args": { type: "string", default: "" },
    "llama-args": { type: "string", default: "" },
    only: { type: "string" },
    json: { type: "boolean", default: false },
  },
});

const scenarios = { rewind, inTurn, shared, beside, skippedSave };
const scenario = scenarios[options.scenario];
if (!scenario || !options.weir || !options.llama || !options.model) {
  console.error(`give --weir, --llama, --model and --scenario (${Object.keys(scenarios).join(", ")})`);
  process.exit(2);
}
const MiB = (bytes) => (bytes / 1048576).toFixed(0);
const words = (text) => text.split(" ").filter(Boolean);

const servers = [
  {
    name: "llama-server",
    program: options.llama,
    port: 18181,
    args: ["-m", options.model, "--port", "18181", "--host", "127.0.0.1", "-t", options.threads, "-fa", "on",
      "-c", options.context, "--jinja", ...words(options["llama-args"])],
  },
  {
    name: "weir",
    program: options.weir,
    port: 18182,
    args: ["serve", "-m", options.model, "--port", "18182", "-t", options.threads, "-c", options.context,
      "--kv-budget", options.budget, ...words(options["weir-args"])],
  },
].filter((s) => !options.only || s.name === options.only);

// Collects the rows of one server's run; rows of one label with `sum` are added up.
class Driver {
  constructor(server, logitBias) {
    this.server = server;
    this.logitBias = logitBias;
    this.rows = new Map();
  }

  async turn(label, messages, settings = {}) {
    const result = await chat(this.server.url, messages, { ...settings, logitBias: this.logitBias });
    const row = this.rows.get(label) ?? { prompt: 0, read: 0, ttft: 0, worstGap: 0, requests: 0, memory: 0 };
    row.requests += 1;
    row.prompt += result.promptTokens;
    row.read += result.readTokens;
    row.ttft = Math.max(row.ttft, result.ttft);
    row.worstGap = Math.max(row.worstGap, ...result.gaps, 0);
    row.memory = Math.max(row.memory, this.server.memory().now - this.server.baseline);
    this.rows.set(label, row);
    return result;
  }
}

async function run(spec) {
  const server = new ServerProcess(spec.name, spec.program, spec.args, spec.port, `${options.logs}/${spec.name}.log`);
  try {
    await server.ready();
    // Replies of one token over and over: the same text with every model, and it comes back as the
    // same tokens when the client sends it as history.
    const [mark] = await tokenize(server.url, "#");
    const driver = new Driver(server, { [mark]: 100 });
    const settings = {};
    if (options.tokens) settings.tokens = Number(options.tokens);
    if (options.count) settings.count = Number(options.count);
    await scenario(driver, settings);
    return { rows: driver.rows, loaded: server.baseline, peak: server.memory().peak };
  } finally {
    await server.stop();
  }
}

const results = {};
for (const spec of servers) {
  console.error(`${spec.name}: ${spec.program} ${spec.args.join(" ")}`);
  results[spec.name] = await run(spec);
}
if (options.json) {
  const plain = Object.fromEntries(
    Object.entries(results).map(([name, r]) => [name, { loaded_bytes: r.loaded, peak_bytes: r.peak, rows: Object.fromEntries(r.rows) }]));
  console.log(JSON.stringify(plain, null, 2));
} else {
  const names = Object.keys(results);
  const columns = ["prompt", ...names.flatMap((n) => [`read ${n}`, "first token", "worst gap", "grown by"])];
  console.log(`| ${options.scenario} | ${columns.join(" | ")} |`);
  console.log(`|${"---|".repeat(columns.length + 1)}`);
  for (const label of results[names[0]].rows.keys()) {
    const cells = names.flatMap((n) => {
      const row = results[n].rows.get(label);
      return [row.read, `${(row.ttft / 1000).toFixed(1)} s`, `${(row.worstGap / 1000).toFixed(2)} s`, `${MiB(row.memory)} MiB`];
    });
    console.log(`| ${label} | ${results[names[0]].rows.get(label).prompt} | ${cells.join(" | ")} |`);
  }
  for (const n of names) {
    console.log(`\n${n}: ${MiB(results[n].loaded)} MiB resident when ready, ${MiB(results[n].peak)} MiB at its peak`);
  }
}
