// What people do with a server, as scripts. Each gets a driver: driver.turn(label, messages) sends
// a request and writes a row of the table.

const kWords = "the king had a golden goose and his daughter would not laugh until she saw it ".split(" ");

// About `tokens` tokens of text that differs with `seed`.
export function text(tokens, seed) {
  const words = [];
  let state = (seed * 2654435761 + 12345) >>> 0;
  for (let i = 0; i < tokens / 2.2; ++i) {
    state = (state * 1664525 + 1013904223) >>> 0;
    words.push(kWords[(state >>> 8) % kWords.length] || String(state % 997));
  }
  return words.join(" ");
}

const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });

// A conversation of about `total` tokens in turns of `turn`, with scripted replies in the history.
export function history(total, turn, seed) {
  const messages = [];
  for (let n = 0, i = 0; n + turn <= total; n += turn, ++i) {
    messages.push(user(text(turn * 0.7, seed * 1000 + i)), assistant(text(turn * 0.3, seed * 1000 + 500 + i)));
  }
  return messages;
}

// One long conversation that its user goes back and forth in.
export async function rewind(driver, { tokens = 8192 } = {}) {
  const turn = 512;
  const past = history(tokens - turn, turn, 1);
  const question = user(text(120, 77));
  const first = await driver.turn("first read", [...past, question]);
  const reply = assistant(first.text);
  await driver.turn("append a turn", [...past, question, reply, user(text(60, 78))]);
  await driver.turn("regenerate the first reply", [...past, question]);
  await driver.turn("edit the last turn", [...past, user(text(120, 79))]);

  // `back` tokens before the end, a user turn is another one; everything after it is gone.
  const edited = (back) => {
    const kept = past.slice(0, past.length - 2 * Math.ceil(back / turn));
    return [...kept, user(text(120, 80 + back))];
  };
  await driver.turn("edit a turn 1,500 tokens back", edited(1500));
  await driver.turn("back to the old branch", [...past, question, reply, user(text(60, 81))]);
  await driver.turn("edit a turn 6,000 tokens back", edited(6000));
  await driver.turn("and back again", [...past, question, reply, user(text(60, 82))]);

  // A client that drops the reasoning of the last reply from the history.
  const reasoning = text(400, 90);
  const withReasoning = [...past, question, assistant(reasoning + " " + text(60, 91)), user(text(60, 92))];
  await driver.turn("a turn after a reply with reasoning", withReasoning);
  await driver.turn("the same without 400 tokens of it", [...past, question, assistant(text(60, 91)), user(text(60, 92))]);
}

// `count` conversations of `tokens` tokens that take turns.
export async function inTurn(driver, { count = 4, tokens = 4096, rounds = 2 } = {}) {
  const conversations = [];
  for (let c = 0; c < count; ++c) conversations.push(history(tokens - 256, 512, 10 + c));
  for (let round = 0; round <= rounds; ++round) {
    for (let c = 0; c < count; ++c) {
      const messages = conversations[c];
      messages.push(user(text(60, 1000 * round + c)));
      const label = round === 0 ? "first read of each" : `round ${round}`;
      const reply = await driver.turn(label, messages, { sum: true });
      messages.push(assistant(reply.text));
    }
  }
}

// `count` conversations that share a system prompt and arrive at once.
export async function shared(driver, { count = 8, tokens = 4096 } = {}) {
  const system = { role: "system", content: text(tokens, 5) };
  const ask = (c) => driver.turn(`${count} at once`, [system, user(text(40, 300 + c))], { sum: true });
  await Promise.all(Array.from({ length: count }, (_, c) => ask(c)));
}

// A long prompt arrives while a reply is running.
export async function beside(driver, { tokens = 16384 } = {}) {
  let arrival = null;
  const running = driver.turn("the running reply", [user(text(64, 6))], {
    maxTokens: 400,
    onToken: (soFar) => {
      if (soFar.gaps.length === 8 && !arrival) {
        arrival = driver.turn("the long prompt", [user(text(tokens, 7))]);
      }
    },
  });
  await running;
  await arrival;
}

// Two conversations in turn, each larger than what llama-server may keep of an idle one
// (--llama-args="--cache-ram 4"): is the first still there when it goes on?
export async function skippedSave(driver, { tokens = 4096 } = {}) {
  const one = [...history(tokens, 512, 21), user(text(60, 22))];
  const two = [...history(tokens, 512, 23), user(text(60, 24))];
  const reply = await driver.turn("one conversation", one);
  await driver.turn("another", two);
  await driver.turn("the first goes on", [...one, assistant(reply.text), user(text(60, 25))]);
}
