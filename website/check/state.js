// The state of the form in the fragment of the address: JSON, compressed, as base64url.

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
    const unpacked = await pipe(packed, new DecompressionStream("deflate-raw"));
    const state = JSON.parse(new TextDecoder().decode(unpacked));
    return state && typeof state === "object" ? state : null;
  } catch {
    return null;
  }
}

const pipe = (data, stream) => new Response(new Blob([data]).stream().pipeThrough(stream)).arrayBuffer();
