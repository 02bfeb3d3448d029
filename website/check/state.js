// The state of the form in the fragment of the address: JSON, compressed, as base64url.

const LARGEST = 2 ** 20; // bytes of the JSON

export async function encode(state) {
  const packed = await pipe(JSON.stringify(state), new CompressionStream("deflate-raw"));
  const text = Array.from(new Uint8Array(packed), (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Returns null for a fragment that is not a state. */
export async function decode(fragment) {
  try {
    const text = atob(fragment.replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const state = JSON.parse(await unpacked(packed));
    return state && typeof state === "object" ? state : null;
  } catch {
    return null;
  }
}

/** Throws if there are more than LARGEST bytes. */
async function unpacked(packed) {
  const decoder = new TextDecoder();
  let text = "", size = 0;
  for await (const chunk of new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"))) {
    size += chunk.length;
    if (size > LARGEST) throw new RangeError("the state is too large");
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

const pipe = (data, stream) => new Response(new Blob([data]).stream().pipeThrough(stream)).arrayBuffer();
