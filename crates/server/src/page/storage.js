// What this browser remembers. Storage may be forbidden (private windows): then nothing is kept.

export function load(name) {
  try {
    return JSON.parse(localStorage.getItem(`impasto.${name}`));
  } catch {
    return null;
  }
}

export function save(name, value) {
  try {
    localStorage.setItem(`impasto.${name}`, JSON.stringify(value));
  } catch {
    // The page works without it.
  }
}
