// The soak inside a memory cgroup that is just large enough for what `weir serve` says it takes: its
// weights, its compute buffers and the KV budget, and a constant for everything else. The system must
// never kill the process.
//   node cgroup.mjs WEIR MODEL SECONDS [CLIENTS]
// Exit code 77: no cgroup can be made here; the process's memory was compared with the limit instead.
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import path from "node:path";

const [weir, model, seconds, clients = "300"] = process.argv.slice(2);
const kMiB = 1024 * 1024;
const kBudget = 24 * kMiB;  // the soak's
// Program, tokenizer, templates, the connections' buffers and the requests of the clients: 27 MiB with
// 300 of them, and what the allocator keeps.
const kRest = 40 * kMiB;
const kSkipped = 77;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const inMiB = (bytes) => `${(bytes / kMiB).toFixed(1)} MiB`;

// Bytes by name, from what weir prints when it starts.
async function needs() {
  const server = spawn(weir, ["serve", "-m", model, "--port", "0", "-t", "1", "--kv-budget", String(kBudget)],
    { stdio: ["ignore", "pipe", "pipe"] });
  let text = "";
  server.stderr.on("data", (bytes) => (text += bytes));
  await new Promise((resolve) => { server.stdout.once("data", resolve); server.once("exit", resolve); });
  server.kill("SIGTERM");
  await new Promise((resolve) => (server.exitCode === null ? server.once("exit", resolve) : resolve()));
  const bytes = (name) => {
    const found = text.match(new RegExp(`${name}\\s+~?\\s*([\\d.]+) ([KMG]?i?B)`));
    if (!found) throw new Error(`weir does not say its ${name}:\n${text}`);
    return Number(found[1]) * { B: 1, KiB: 1024, MiB: kMiB, GiB: 1024 * kMiB }[found[2]];
  };
  return { weights: bytes("weights"), compute: bytes("compute") };
}

// A new cgroup with that limit, or null if none may be made.
function makeCgroup(limit) {
  const own = readFileSync("/proc/self/cgroup", "utf8").split("\n").map((line) => line.split(":"));
  const pathIn = (controller) => own.find((line) => line[1]?.split(",").includes(controller))?.[2] ?? "/";
  const kinds = [
    { root: "/sys/fs/cgroup/memory", own: pathIn("memory"), limit: "memory.limit_in_bytes",
      swap: ["memory.memsw.limit_in_bytes", limit], events: "memory.oom_control",
      peak: "memory.max_usage_in_bytes" },
    { root: "/sys/fs/cgroup", own: pathIn(""), limit: "memory.max", swap: ["memory.swap.max", 0],
      events: "memory.events", peak: "memory.peak" },
  ];
  for (const kind of kinds) {
    for (const parent of [path.join(kind.root, kind.own), kind.root]) {
      const dir = path.join(parent, `weir-soak-${process.pid}`);
      try {
        mkdirSync(dir);
      } catch {
        continue;
      }
      try {
        writeFileSync(path.join(dir, kind.limit), String(limit));
      } catch {
        rmdirSync(dir);
        continue;
      }
      try {
        writeFileSync(path.join(dir, kind.swap[0]), String(kind.swap[1]));
      } catch {
        // A system that does not swap has no limit of it.
      }
      return { dir, ...kind };
    }
  }
  return null;
}

function soak(prefix, environment = {}) {
  const script = path.join(import.meta.dirname, "soak.mjs");
  const run = spawn(process.execPath, [script, weir, model, seconds, clients, ...prefix],
    { stdio: "inherit", env: { ...process.env, ...environment } });
  return new Promise((resolve) => run.on("exit", (code) => resolve(code ?? 1)));
}

const { weights, compute } = await needs();
const limit = Math.ceil((weights + compute + kBudget + kRest) / 4096) * 4096;
const sum = `${inMiB(weights)} weights + ${inMiB(compute)} compute + ${inMiB(kBudget)} KV budget + ${inMiB(kRest)} ` +
  `for the rest = ${inMiB(limit)}`;

const cgroup = makeCgroup(limit);
if (!cgroup) {
  console.log(`cgroup: none can be made here; the process's own memory is compared with the limit instead: ${sum}`);
  process.exit((await soak([], { WEIR_SOAK_MEMORY_LIMIT: String(limit) })) || kSkipped);
}
console.log(`cgroup: ${cgroup.dir}, limit ${sum}`);
const code = await soak(["sh", "-c", `echo $$ >${cgroup.dir}/cgroup.procs && exec "$@"`, "sh"]);
const read = (file) => (existsSync(path.join(cgroup.dir, file)) ? readFileSync(path.join(cgroup.dir, file), "utf8") : "");
const kills = Number(read(cgroup.events).match(/^oom_kill (\d+)/m)?.[1] ?? NaN);
console.log(`cgroup: ${kills} killed; most ${inMiB(Number(read(cgroup.peak)))} of ${inMiB(limit)}, file pages included`);
for (let i = 0; i < 50; ++i) {
  try {
    rmdirSync(cgroup.dir);
    break;
  } catch {
    await sleep(100);  // until the last process has left it
  }
}
process.exit(code !== 0 || kills !== 0 ? 1 : 0);
