// Words and numbers for people.

const numbers = new Intl.NumberFormat();
export const count = (number) => numbers.format(number);

// "1 dead message", "2,000 dead messages".
export const messages = (number, kind = "") => `${count(number)} ${kind ? `${kind} ` : ""}message${number === 1 ? "" : "s"}`;

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const parts = [[86400, "d"], [3600, "h"], [60, "m"]];
  for (const [size, letter] of parts) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / (size === 86400 ? 3600 : size / 60));
      const small = { d: "h", h: "m", m: "s" }[letter];
      return `${Math.floor(seconds / size)}${letter}${rest ? ` ${rest}${small}` : ""}`;
    }
  }
  return seconds >= 10 ? `${Math.floor(seconds)}s` : `${seconds.toFixed(1)}s`;
}

export function ago(stamp) {
  if (!stamp) return "";
  const seconds = (Date.now() - Date.parse(stamp)) / 1000;
  return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

export const rate = (number) => (number === 0 ? "·" : `${number >= 10 ? count(Math.round(number)) : number.toFixed(1)}/s`);

// Characters that reorder or hide text are shown by their numbers.
const ODD = /(?![\t\n\r])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
export const visible = (text) =>
  text.replace(ODD, (letter) => {
    const number = letter.codePointAt(0).toString(16);
    return number.length > 4 ? `\\U${number.padStart(8, "0")}` : `\\u${number.padStart(4, "0")}`;
  });
