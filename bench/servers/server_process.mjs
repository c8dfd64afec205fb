// A server under test: started, waited for, measured from /proc, stopped.
import { spawn } from "node:child_process";
import { readFileSync, openSync } from "node:fs";

// Kilobytes of a line such as "VmRSS:  1234 kB", as bytes.
function statusBytes(pid, field) {
  const line = readFileSync(`/proc/${pid}/status`, "utf8").match(new RegExp(`^${field}:\\s+(\\d+)`, "m"));
  return line ? Number(line[1]) * 1024 : 0;
}

export class ServerProcess {
  constructor(name, program, args, port, logFile) {
    this.name = name;
    this.url = `http://127.0.0.1:${port}`;
    const log = openSync(logFile, "w");
    this.child = spawn(program, args, { stdio: ["ignore", log, log] });
    this.exited = new Promise((resolve) => this.child.on("exit", resolve));
    this.logFile = logFile;
  }

  async ready(seconds = 180) {
    const end = Date.now() + seconds * 1000;
    while (Date.now() < end) {
      if (this.child.exitCode !== null) break;
      try {
        if ((await fetch(`${this.url}/health`)).ok) {
          this.baseline = this.memory().now;
          return;
        }
      } catch {
        // not listening yet
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    throw new Error(`${this.name} did not start; see ${this.logFile}`);
  }

  // Resident bytes of the process: now, and the most so far.
  memory() {
    return { now: statusBytes(this.child.pid, "VmRSS"), peak: statusBytes(this.child.pid, "VmHWM") };
  }

  async stop() {
    this.child.kill("SIGTERM");
    const forced = setTimeout(() => this.child.kill("SIGKILL"), 15000);
    await this.exited;
    clearTimeout(forced);
  }
}
