// Writes ../testdata/oracle.jsonl: texts with the pieces and, in the vocabulary of the demonstration model, the ids that the
// reference tokenizer (npm's tiktoken, its WASM build) gives for them.
import { readFileSync, writeFileSync } from "node:fs";
import { Tiktoken } from "tiktoken";

const pattern = [
  String.raw`[\p{Han}]+`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`\p{N}{1,3}`,
  String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`,
  String.raw`\s*[\r\n]+`,
  String.raw`\s+(?!\S)`,
  String.raw`\s+`,
].join("|");

const model = readFileSync(new URL("../../../presets/demo/checkpoint/tiktoken.model", import.meta.url), "utf8");
const demo = new Tiktoken("! 0 " + model.trim().split("\n").map((l) => l.split(" ")[0]).join(" "), {}, pattern);

// With every part of the text a token, the ids of the text are its pieces.
function pieces(text) {
  const data = Buffer.from(text);
  const tokens = new Map();
  const add = (p) => tokens.has(p.toString("hex")) || tokens.set(p.toString("hex"), p);
  for (let b = 0; b < 256; b++) add(Buffer.from([b]));
  for (let i = 0; i < data.length; i++) for (let j = i + 1; j <= data.length; j++) add(data.subarray(i, j));
  const list = [...tokens.values()];
  const t = new Tiktoken("! 0 " + list.map((p) => p.toString("base64")).join(" "), {}, pattern);
  const out = Array.from(t.encode_ordinary(text), (id) => list[id].toString("utf8"));
  t.free();
  return out;
}

const texts = [
  "The capital of France is Paris.\ndef fibonacci(n):\n    if n <= 1:\n        return n\n",
  "What is 12 + 34? 46.\n\n\nOnce upon a time there was a fox.",
  "it's IT'S it'ſ they'RE they'Ve I'LL I'l I'd'd 'tis ''s x'r x' '",
  "\u0301A! \u0301ABC \u0301\u0301Ab a\u0301'S \u0301's A\u0301B a\u02b0B \u02b0'll",
  "1〇〇〇 〡〢〣 ⅣⅤ ½ x²y ３４５６7",
  "々〇〆〻 ⺀x !⺀ \u{16ff0}a \u{2ebf0} \u{323b0} a\u{2ebf0}b",
  "\u0c3c!a\u0c3c \u1c89\u1c8a \ua7c0x \u{16d40}y Ǆǅǆ",
  "   \n  x\r\n\r\ny \t z\u00a0\u00a0w\u3000\u2028v\u0085u \u001c\u001d t\u180e",
  "!!!\r\n\n  !!! \n!", "a \u200d👨‍👩‍👧‍👦🏳️‍🌈 é", "한국어ABC かなカナ漢字ー", "     ", "\n", " ", "\r", "\u0000\u0007",
];
// And random walks over characters that differ in class, length or folding.
const alphabet = [..." \t\n\r\u00a0\u2003\u3000\u0085\u001c'’sStTrReEvVmMlLdDſKaAzZßΣςǅʰªº中々〇⺀あカーกำ한ा\u0301\u20e3\u0903١²½Ⅷ0919!.,-_(){}<|>€😀\u200d\ufe0f\u00ad\u0000\u{16d40}\u{16ff0}\u{2ebf0}\u{323b0}\u{1d400}\u0c3c\u1c89\ua7c0"];
let seed = 1n;
const random = (n) => Number((seed = (seed * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn) >> 33n) % n;
for (let i = 0; i < 500; i++) {
  const few = Array.from({ length: 2 + random(8) }, () => alphabet[random(alphabet.length)]);
  texts.push(Array.from({ length: 1 + random(24) }, () => (random(3) ? few[random(few.length)] : alphabet[random(alphabet.length)])).join(""));
}
const lines = texts.map((text) => JSON.stringify({ text, pieces: pieces(text), ids: Array.from(demo.encode_ordinary(text)) }));
writeFileSync(new URL("../testdata/oracle.jsonl", import.meta.url), lines.join("\n") + "\n");
console.error(`${lines.length} texts`);
