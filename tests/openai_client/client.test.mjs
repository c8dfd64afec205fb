// OpenAI's own JavaScript client against a running server: WEIR_URL is its address, without /v1.
import assert from 'node:assert/strict';
import {test} from 'node:test';

import OpenAI from 'openai';

const url = process.env.WEIR_URL;
assert.ok(url, 'WEIR_URL is not set');
const client = new OpenAI({
  baseURL: `${url}/v1`,
  apiKey: process.env.WEIR_API_KEY ?? 'none',
  maxRetries: 0,
});
const model = 'weir-tiny';
const messages = [{role: 'user', content: 'Tell me a tale.'}];

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a place',
    parameters: {
      type: 'object',
      properties: {
        place: {type: 'string', enum: ['Bonn', 'Paris']},
        days: {type: 'integer', minimum: 1, maximum: 7},
      },
      required: ['place', 'days'],
      additionalProperties: false,
    },
  },
};

function checkCall(call) {
  assert.equal(call.type, 'function');
  assert.equal(call.function.name, 'get_weather');
  const {place, days, ...rest} = JSON.parse(call.function.arguments);
  assert.ok(place === 'Bonn' || place === 'Paris');
  assert.ok(Number.isInteger(days) && days >= 1 && days <= 7);
  assert.deepEqual(rest, {});
}

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail('the request was accepted');
}

test('models are listed and found', async () => {
  const page = await client.models.list();
  assert.equal(page.data.length, 1);
  const found = await client.models.retrieve(page.data[0].id);
  assert.equal(found.object, 'model');
  const error = await refusal(client.models.retrieve('gpt-4'));
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, 'model_not_found');
});

test('a chat is answered', async () => {
  const answer = await client.chat.completions.create({model, messages, max_tokens: 16, seed: 1});
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test('a stream gives what the whole answer has', async () => {
  const body = {model, messages, max_tokens: 32, seed: 2};
  const whole = await client.chat.completions.create(body);
  const stream = await client.chat.completions.create(
      {...body, stream: true, stream_options: {include_usage: true}});
  let text = '', finish = null, usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, whole.choices[0].finish_reason);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test('the streaming helper puts the message together', async () => {
  const runner = client.chat.completions.stream({model, messages, max_tokens: 12, seed: 3});
  let parts = '';
  runner.on('content', (delta) => {
    parts += delta;
  });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.content, parts);
  assert.equal(final.choices[0].finish_reason, 'length');
});

test('several choices and log-probabilities', async () => {
  const answer = await client.chat.completions.create(
      {model, messages, max_tokens: 8, seed: 4, n: 3, logprobs: true, top_logprobs: 5});
  assert.equal(answer.choices.length, 3);
  for (const choice of answer.choices) {
    assert.ok(choice.logprobs.content.length > 0);
    for (const one of choice.logprobs.content) {
      assert.ok(one.logprob <= 0);
      assert.equal(one.top_logprobs.length, 5);
    }
  }
});

test('a tool that must be called is called', async () => {
  // One call, with which the reply ends: of several, a small model's sampling may find no end.
  const answer = await client.chat.completions.create({
    model,
    messages,
    tools: [weather],
    tool_choice: 'required',
    parallel_tool_calls: false,
    max_tokens: 300,
    seed: 5,
  });
  assert.equal(answer.choices[0].finish_reason, 'tool_calls');
  checkCall(answer.choices[0].message.tool_calls[0]);
});

test('a tool call is streamed', async () => {
  const runner = client.chat.completions.stream({
    model,
    messages,
    tools: [weather],
    tool_choice: {type: 'function', function: {name: 'get_weather'}},
    parallel_tool_calls: false,
    max_tokens: 300,
    seed: 6,
  });
  const message = await runner.finalMessage();
  assert.equal(message.tool_calls.length, 1);
  checkCall(message.tool_calls[0]);
});

test('the answer of a tool goes back', async () => {
  const call = {
    id: 'call_1',
    type: 'function',
    function: {name: 'get_weather', arguments: '{"place":"Bonn","days":1}'},
  };
  const answer = await client.chat.completions.create({
    model,
    messages: [
      ...messages,
      {role: 'assistant', content: null, tool_calls: [call]},
      {role: 'tool', tool_call_id: 'call_1', content: 'rain'},
    ],
    tools: [weather],
    max_tokens: 8,
  });
  assert.equal(answer.choices[0].message.role, 'assistant');
});

test('a JSON schema is obeyed', async () => {
  const schema = {
    type: 'object',
    properties: {animal: {enum: ['fox', 'hen']}, legs: {type: 'integer', minimum: 2, maximum: 4}},
    required: ['animal', 'legs'],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.create({
    model,
    messages,
    response_format: {type: 'json_schema', json_schema: {name: 'pet', strict: true, schema}},
    max_tokens: 100,
    seed: 7,
  });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.ok(['fox', 'hen'].includes(value.animal));
  assert.ok(value.legs >= 2 && value.legs <= 4);
});

test('plain completions, whole and streamed', async () => {
  const body = {model, prompt: 'Once upon a', max_tokens: 12, seed: 8, logprobs: 2};
  const whole = await client.completions.create(body);
  assert.equal(whole.choices[0].logprobs.tokens.length, 12);
  let text = '';
  for await (const chunk of await client.completions.create({...body, stream: true})) {
    text += chunk.choices[0]?.text ?? '';
  }
  assert.equal(text, whole.choices[0].text);
});

test('a long system message is found again', async () => {
  const system = {role: 'system', content: 'The king said to the fox: come here. '.repeat(20)};
  const ask = (content) => client.chat.completions.create(
      {model, messages: [system, {role: 'user', content}], max_tokens: 4});
  await ask('One?');
  const second = await ask('Two?');
  const {prompt_tokens, prompt_tokens_details} = second.usage;
  assert.ok(prompt_tokens_details.cached_tokens > prompt_tokens / 2,
            `${prompt_tokens_details.cached_tokens} of ${prompt_tokens} cached`);
});

test('refusals are the classes of the client', async () => {
  const bad = await refusal(client.chat.completions.create({model, messages, temperature: 'hot'}));
  assert.ok(bad instanceof OpenAI.BadRequestError);
  assert.equal(bad.param, 'temperature');
  const empty = await refusal(client.chat.completions.create({model, messages: []}));
  assert.equal(empty.param, 'messages');
  const long = await refusal(client.chat.completions.create(
      {model, messages: [{role: 'user', content: 'king '.repeat(40000)}], stream: true}));
  assert.ok(long instanceof OpenAI.BadRequestError);
  assert.equal(long.code, 'context_length_exceeded');
});

test('an aborted stream ends, and the server goes on', async () => {
  const stream = await client.chat.completions.create(
      {model, messages, max_tokens: 100000, stream: true, ignore_eos: true});
  let chunks = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    if (++chunks === 5) stream.controller.abort();
  }
  assert.ok(chunks >= 5);
  const signal = AbortSignal.timeout(50);
  await refusal(client.chat.completions.create(
      {model, messages, max_tokens: 100000, ignore_eos: true}, {signal}));
  const after = await client.chat.completions.create({model, messages, max_tokens: 2});
  assert.equal(after.usage.completion_tokens, 2);
});

test('many clients at once', async () => {
  const body = {model, messages, max_tokens: 16, temperature: 0};
  const alone = await client.chat.completions.create(body);
  const answers = await Promise.all(
      Array.from({length: 12}, () => client.chat.completions.create(body)));
  for (const answer of answers) {
    assert.equal(answer.choices[0].message.content, alone.choices[0].message.content);
  }
});
