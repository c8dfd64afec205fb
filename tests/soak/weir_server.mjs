// `weir serve` as a child process, and requests to it.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";

export class WeirServer {
  // `command` starts it, without the port. `onEnd` is told how it ended if nobody stopped it.
  static async start(command, onEnd) {
    const server = new WeirServer();
    server.agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
    server.child = spawn(command[0], [...command.slice(1), "--port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
    server.exited = new Promise((resolve) => server.child.on("exit", (code, signal) => resolve(signal ?? code)));
    server.port = await new Promise((resolve, reject) => {
      let text = "";
      server.child.stdout.on("data", (bytes) => {
        text += bytes;
        const found = text.match(/listening on http:\/\/[^:]+:(\d+)/);
        if (found) resolve(Number(found[1]));
      });
      server.exited.then((how) => reject(new Error(`weir ended before it listened: ${how}`)));
    });
    server.exited.then((how) => server.isStopping || onEnd(how));
    return server;
  }

  // How it ended: its exit code or the name of a signal.
  async stop() {
    this.isStopping = true;
    this.child.kill("SIGTERM");
    const how = await this.exited;
    this.agent.destroy();
    return how;
  }

  // Resident bytes of anonymous memory: pages of the mapped file come and go as the system likes. Of
  // the server also when a command before it has started it.
  residentBytes() {
    const { pid } = this.child;
    const started = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim();
    return Number(readFileSync(`/proc/${started || pid}/status`, "utf8").match(/^RssAnon:\s+(\d+)/m)[1]) * 1024;
  }

  // Resolves to { status, body }, after `hangUpAfter` bytes of the answer to status 0, and to status -1
  // when there is no end after `seconds`.
  ask(path, body = null, { hangUpAfter = Infinity, seconds = 600, key = null } = {}) {
    return new Promise((settle) => {
      const resolve = (answer) => {
        clearTimeout(timer);
        settle(answer);
      };
      const timer = setTimeout(() => {
        settle({ status: -1, body: "" });
        request.destroy();
      }, seconds * 1000);
      const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
      const request = http.request({ host: "127.0.0.1", port: this.port, path, method: body === null ? "GET" : "POST",
        agent: this.agent, headers }, (response) => {
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
}
