// The page of `vit serve`: pictures go to the server one by one, and its answers become bars.
"use strict";

const SHOWN = 5; // classes at first
const ASKED = 10; // classes in all
const AT_ONCE = 3; // requests in flight
const TRIES = 6; // times that a busy server is asked
const KEY = "vitkit-key";

const find = selector => document.querySelector(selector);
const all = selector => document.querySelectorAll(selector);
const pause = seconds => new Promise(done => setTimeout(done, seconds * 1000));
const counted = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;
const megabytes = bytes => `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;
const percent = share => share >= 0.9995 ? "100%" : share < 0.001 ? "< 0.1%" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`;
const sentence = words => words.charAt(0).toUpperCase() + words.slice(1).replace(/[^.!?]$/, "$&.");
// Class names of ImageNet list synonyms after commas; the first is what people call it.
const capital = name => name.charAt(0).toUpperCase() + name.slice(1);

const state = { info: null, pictures: [], current: null, key: "", sending: 0, isOpen: false };

// -- the server ------------------------------------------------------------------------------------------------

class Refusal extends Error {
  constructor(status, words, wait) {
    super(words);
    Object.assign(this, { status, wait });
  }
}

const WORDS = {
  0: "The server does not answer. Check that it still runs and that you are online",
  401: "The server does not accept this key",
  413: "This picture is larger than the server takes",
  415: "The server cannot read this file as a picture",
  503: "The server has more work than it can finish in time",
};

async function ask(path, { signal, ...options } = {}) {
  const headers = state.key ? { Authorization: `Bearer ${state.key}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, WORDS[0]);
  }
  if (answer.ok) return answer;
  const told = await answer.json().then(({ error }) => error, () => null);
  const words = answer.status === 503 ? WORDS[503] : told || WORDS[answer.status] || `The server answered ${answer.status}`;
  throw new Refusal(answer.status, words, Math.max(1, Number(answer.headers.get("Retry-After")) || 1));
}

function form(picture) {
  const body = new FormData();
  body.append("file", picture.file, picture.name);
  return body;
}

// -- pictures and their answers -----------------------------------------------------------------------------------

function wrong(file) {
  if (file.type && !file.type.startsWith("image/")) return "This file is not a picture";
  if (!file.size) return "This file is empty";
  const most = state.info.max_bytes;
  return most && file.size > most ? `This picture has ${megabytes(file.size)}; the server takes up to ${megabytes(most)}` : "";
}

function add(files, name = "") {
  if (!state.info) return;
  const added = [...files].map(file => {
    const error = wrong(file);
    const picture = { file, name: name || file.name, error, tries: 0, status: error ? "failed" : "waiting", isFinal: Boolean(error) };
    picture.url = error ? "" : URL.createObjectURL(file);
    picture.tile = makeTile(picture);
    return picture;
  });
  if (!added.length) return;
  state.pictures.push(...added);
  choose(added[0]);
  send();
}

function send() {
  for (const picture of state.pictures) {
    if (state.sending >= AT_ONCE || isHeld()) return;
    if (picture.status === "waiting") classify(picture);
  }
}

async function classify(picture) {
  picture.status = "sending";
  state.sending += 1;
  show(picture);
  const start = performance.now();
  try {
    const answer = await ask(`predict?top=${Math.min(ASKED, state.info.num_classes)}`, { method: "POST", body: form(picture) });
    const [prediction] = (await answer.json()).predictions;
    if (prediction.error) throw new Refusal(422, prediction.error);
    Object.assign(picture, { status: "done", classes: prediction.classes, took: performance.now() - start, error: "" });
    hold(0);
  } catch (error) {
    picture.tries += 1;
    if (error.status === 401) {
      picture.status = "waiting";
      askForKey("The server does not accept this key. Check it and try again.");
    } else if (error.status === 503 && picture.tries < TRIES) {
      picture.status = "waiting";
      hold(error.wait);
    } else {
      Object.assign(picture, { status: "failed", error: error.message, isFinal: ![0, 503].includes(error.status) });
    }
  }
  state.sending -= 1;
  show(picture);
  send();
}

function again(picture) {
  Object.assign(picture, { status: "waiting", tries: 0, error: "" });
  show(picture);
  send();
}

function remove(picture) {
  const place = state.pictures.indexOf(picture);
  state.pictures.splice(place, 1);
  picture.tile.remove();
  URL.revokeObjectURL(picture.url);
  choose(state.pictures[Math.min(place, state.pictures.length - 1)] ?? null);
}

// A server with more work than it can finish says when to come back: until then nothing is sent.
let heldUntil = 0;
const isHeld = () => find("#key-dialog").open || performance.now() < heldUntil;

async function hold(seconds) {
  if (!seconds) return say("");
  heldUntil = Math.max(heldUntil, performance.now() + seconds * 1000);
  while (performance.now() < heldUntil) {
    const left = Math.ceil((heldUntil - performance.now()) / 1000);
    say(`The server is busy. Your pictures are kept; trying again in ${left} s.`);
    await pause(Math.min(1, (heldUntil - performance.now()) / 1000) + 0.005);
  }
  say("");
  send();
}

function say(words) {
  find("#notice").hidden = !words;
  find("#notice span").textContent = words;
}

// -- what is shown ------------------------------------------------------------------------------------------------

const copy = name => find(`#${name}-template`).content.firstElementChild.cloneNode(true);

function makeTile(picture) {
  const tile = copy("tile");
  tile.querySelector("img").src = picture.url;
  tile.querySelector("img").hidden = !picture.url;
  tile.querySelector("img").onerror = event => { event.target.hidden = true; };
  tile.querySelector("button").onclick = () => choose(picture);
  find("#strip").append(tile);
  return tile;
}

function choose(picture) {
  state.current = picture;
  find("#welcome").hidden = Boolean(picture);
  find("#work").hidden = !picture;
  document.body.dataset.state = picture ? "working" : "ready";
  state.pictures.forEach(showTile);
  if (!picture) return;
  picture.tile.scrollIntoView({ block: "nearest", inline: "nearest" });
  const photo = find("#photo");
  photo.hidden = !picture.url;
  find("#no-preview").hidden = true;
  photo.src = picture.url;
  photo.alt = picture.name;
  find("#name").textContent = picture.name;
  show(picture);
}

function showTile(picture) {
  const [button, says, badge] = ["button", ".says", ".badge"].map(part => picture.tile.querySelector(part));
  const words = { done: picture.classes?.[0]?.name ?? "", failed: "No answer" }[picture.status] ?? "…";
  picture.tile.dataset.status = picture.status;
  says.textContent = words;
  badge.textContent = picture.status === "failed" ? "!" : "";
  button.title = picture.name;
  button.setAttribute("aria-label", `${picture.name}: ${words === "…" ? "waiting" : words}`);
  button.setAttribute("aria-current", String(picture === state.current));
}

function show(picture) {
  showTile(picture);
  if (picture !== state.current) return;
  find("#waiting").hidden = !["waiting", "sending"].includes(picture.status);
  find("#failure").hidden = picture.status !== "failed";
  find("#result").hidden = picture.status !== "done";
  if (picture.status === "failed") {
    find("#failure p").textContent = sentence(picture.error);
    find("#failure button").hidden = picture.isFinal;
  }
  if (picture.status === "done") showClasses(picture);
}

function showClasses(picture) {
  const { classes } = picture;
  const [best] = classes;
  find(".best strong").textContent = capital(best.name);
  find(".best span").textContent = percent(best.probability);
  const shown = state.isOpen ? classes : classes.slice(0, SHOWN);
  find("#classes").replaceChildren(...shown.map(entry => {
    const row = copy("class");
    row.querySelector(".name").textContent = entry.name;
    row.querySelector(".share").textContent = percent(entry.probability);
    row.querySelector(".bar").style.width = `${entry.probability * 100}%`;
    return row;
  }));
  find("#more").hidden = classes.length <= SHOWN;
  find("#more").textContent = state.isOpen ? "Fewer classes" : `${classes.length - SHOWN} more`;
  find("#more").setAttribute("aria-expanded", String(state.isOpen));
  find("#took").textContent = `Answered in ${Math.round(picture.took)} ms`;
}

// -- the key -----------------------------------------------------------------------------------------------------

const keyDialog = find("#key-dialog");

function askForKey(words) {
  if (words) find("#key-words").textContent = words;
  if (!keyDialog.open) keyDialog.showModal();
  find("#key").select();
}

keyDialog.querySelector("form").onsubmit = event => {
  event.preventDefault();
  state.key = find("#key").value.trim();
  sessionStorage.setItem(KEY, state.key);
  keyDialog.close();
};
keyDialog.querySelector(".cancel").onclick = () => keyDialog.close();
keyDialog.onclose = () => send();
find("#key-button").onclick = () => askForKey("");

// -- ways in -----------------------------------------------------------------------------------------------------

const take = input => { add(input.files); input.value = ""; };
find("#files").onchange = event => take(event.target);
find("#shot").onchange = event => take(event.target);
all(".choose").forEach(button => { button.onclick = () => find("#files").click(); });
find("#more").onclick = () => { state.isOpen = !state.isOpen; show(state.current); };
find("#remove").onclick = () => remove(state.current);
find("#failure button").onclick = () => again(state.current);
find("#photo").onerror = event => {
  event.target.hidden = true;
  find("#no-preview").hidden = !state.current?.url;
};

let depth = 0; // elements that a dragged file is over
const carries = event => [...event.dataTransfer.types].includes("Files");
document.addEventListener("dragenter", event => { depth += 1; find("#drop").hidden = !carries(event); });
document.addEventListener("dragleave", () => { depth -= 1; find("#drop").hidden = depth <= 0 || find("#drop").hidden; });
document.addEventListener("dragover", event => { if (carries(event)) event.preventDefault(); });
document.addEventListener("drop", event => {
  depth = 0;
  find("#drop").hidden = true;
  if (!carries(event)) return;
  event.preventDefault();
  add(event.dataTransfer.files);
});

// -- start -------------------------------------------------------------------------------------------------------

function fact(name, value) {
  const entry = document.createElement("div");
  for (const [tag, words] of [["dt", name], ["dd", value]]) entry.append(Object.assign(document.createElement(tag), { textContent: words }));
  return entry;
}

async function start() {
  say("");
  find("#notice button").hidden = true;
  try {
    state.info = await (await ask("info")).json();
  } catch (error) {
    say(sentence(error.message));
    find("#notice button").hidden = false;
    return;
  }
  const { model, num_classes, image_size, latency_ms, key_required } = state.info;
  document.title = `${model} · vitkit`;
  find("#model").textContent = model;
  find("#facts").replaceChildren(
    fact("Classes", num_classes.toLocaleString("en")),
    fact("Sees", [image_size].flat().reduce((height, width) => `${height} × ${width}`) + " pixels"),
    ...(latency_ms ? [fact("Answers within", `${latency_ms} ms`)] : []),
  );
  find("#key-button").hidden = !key_required;
  document.body.dataset.state = "ready";
  if (key_required && !state.key) askForKey("");
}

state.key = sessionStorage.getItem(KEY) ?? "";
find("#notice button").onclick = start;
start();
