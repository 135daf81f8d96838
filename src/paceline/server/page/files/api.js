// The server's API: JSON in, JSON or events out, errors in words.

const KEY = "paceline.key";
let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage is forbidden here: the key lives as long as the page
  }
}

export function setKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // kept in memory alone
  }
}

export class ApiError extends Error {
  /** @param {number} status of HTTP, 0 where none came */
  constructor(message, status, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** GET a JSON document. @param {string} [asKey] try this key in place of the kept one */
export async function get(path, asKey = key) {
  return (await request(path, { headers: headers(asKey) })).json();
}

/** POST, and yield the events of the answer as objects until [DONE]. */
export async function* stream(path, body, signal) {
  const init = { method: "POST", headers: { ...headers(key), "Content-Type": "application/json" }, signal };
  const response = await request(path, { ...init, body: JSON.stringify(body) });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, 200, event.error.code);
    yield event;
  }
  throw new ApiError("The connection ended before the answer did.", 0);
}

function headers(withKey) {
  return withKey ? { Authorization: `Bearer ${withKey}` } : {};
}

async function request(path, init) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...init });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? `The server answered with status ${response.status}.`;
  throw new ApiError(message, response.status, told?.error?.code);
}

function broken(error) {
  throw error.name === "AbortError" ? error : new ApiError("The connection to the server broke.", 0);
}

/** The data of server-sent events; each is one line here. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(broken);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
