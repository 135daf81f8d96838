// The official openai client against OPENAI_BASE_URL. Prints "all passed", or fails with what was wrong.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "What is the weather in Rome?" }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] },
    },
  },
];

const models = await client.models.list();
assert.deepEqual(models.data.map((entry) => entry.id), [model]);

const asked = { model, messages, max_tokens: 30, seed: 7, temperature: 0.8 };
const whole = await client.chat.completions.create(asked);
assert.equal(whole.choices[0].message.role, "assistant");
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

let text = "";
let usage = null;
const stream = await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const called = await client.chat.completions.create({ ...asked, max_tokens: 400, tools, tool_choice: "required", parallel_tool_calls: false });
const call = called.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "weather");
assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));

const collected = client.chat.completions.stream({ ...asked, max_tokens: 400, tools, tool_choice: "required", parallel_tool_calls: false });
const final = await collected.finalChatCompletion();
assert.deepEqual(final.choices[0].message.tool_calls[0].function.name, "weather");

const completion = await client.completions.create({ model, prompt: ["a", "b"], max_tokens: 5, n: 2, logprobs: 1 });
assert.equal(completion.choices.length, 4);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: 200 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  return true;
});
await assert.rejects(client.withOptions({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);

// A client that walks away in the middle of a stream.
const left = await client.chat.completions.create({ ...asked, max_tokens: 400, stream: true });
for await (const _ of left) break;

console.log("all passed");
