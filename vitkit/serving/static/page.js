// The page of `vit serve`: pictures go to the server one by one, and its answers become bars.
"use strict";

const SHOWN = 5; // classes at first
const ASKED = 10; // classes in all
const AT_ONCE = 3; // requests in flight
const TRIES = 6; // times that a busy server is asked
const SIMILAR = 8; // pictures like the one that is looked at
const FORM = 500; // bytes that a request has around its picture
const KEY = "vitkit-key";

const find = selector => document.querySelector(selector);
const all = selector => document.querySelectorAll(selector);
const pause = seconds => new Promise(done => setTimeout(done, seconds * 1000));
const counted = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;
const megabytes = bytes => `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;
const percent = share => share > 0.9995 ? "> 99.9%" : share < 0.001 ? "< 0.1%" : `${(share * 100).toFixed(share < 0.1 || share > 0.99 ? 1 : 0)}%`;
const sentence = words => words.charAt(0).toUpperCase() + words.slice(1).replace(/[^.!?]$/, "$&.");

const state = {
  info: null,
  key: "",
  pictures: [],
  current: null,
  sending: 0,
  isOpen: false, // whether all classes are listed
  view: "picture",
  layer: 0, // 0: all of them rolled out
  head: 0, // 0: their mean
};

// -- the server ------------------------------------------------------------------------------------------------

class Refusal extends Error {
  constructor(status, words, wait) {
    super(words);
    Object.assign(this, { status, wait });
  }
}

const NO_KEY = "This server answers only with a key. Ask whoever runs it for one";
const WORDS = {
  0: "The server does not answer. Check that it still runs and that you are online",
  401: "The server does not accept this key",
  413: "This picture is larger than the server takes",
  415: "The server cannot read this file as a picture",
  503: "The server has more work than it can finish in time",
};

const DAMAGED = /truncated|broken data/; // as the server's decoder says it

async function ask(path, { signal, ...options } = {}) {
  const { key } = state;
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, WORDS[0]);
  }
  if (answer.ok) return answer;
  const told = await answer.json().then(({ error }) => error, () => null);
  if (answer.status === 401 && key !== state.key) return ask(path, { signal, ...options }); // a new key came meanwhile
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
  return most && file.size + FORM > most ? `This picture has ${megabytes(file.size)}; the server takes up to ${megabytes(most)}` : "";
}

function add(files, name = "") {
  if (!state.info) return say("The server has not answered yet. Add your pictures again once it has.", { isShort: true });
  const added = [...files].map(file => {
    const error = wrong(file);
    const picture = { file, name: name || file.name, error, tries: 0, status: error ? "failed" : "waiting", isFinal: Boolean(error), maps: new Map(), similar: null };
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

async function askForClasses(picture) {
  const answer = await ask(`predict?top=${Math.min(ASKED, state.info.num_classes)}`, { method: "POST", body: form(picture) });
  const [prediction] = (await answer.json()).predictions;
  if (prediction.error) throw new Refusal(422, prediction.error);
  return prediction.classes;
}

async function classify(picture) {
  picture.status = "sending";
  state.sending += 1;
  show(picture);
  const start = performance.now();
  try {
    const classes = state.info.num_classes ? await askForClasses(picture) : [];
    Object.assign(picture, { status: "done", classes, took: performance.now() - start, error: "" });
  } catch (error) {
    picture.tries += 1;
    if (error.status === 401) {
      picture.status = "waiting";
      askForKey();
    } else if (error.status === 503 && picture.tries < TRIES) {
      picture.status = "waiting";
      hold(error.wait);
    } else {
      Object.assign(picture, { status: "failed", error: DAMAGED.test(error.message) ? "This file is cut off or damaged" : error.message, isFinal: ![0, 503].includes(error.status) });
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
  [picture.url, ...picture.maps.values()].forEach(url => URL.revokeObjectURL(url));
  choose(state.pictures[Math.min(place, state.pictures.length - 1)] ?? null);
}

// A server with more work than it can finish says when to come back: until then nothing is sent.
let heldUntil = 0;
const isHeld = () => find("#key-dialog").open || performance.now() < heldUntil;

async function hold(seconds) {
  heldUntil = Math.max(heldUntil, performance.now() + seconds * 1000);
  while (performance.now() < heldUntil) {
    const left = Math.ceil((heldUntil - performance.now()) / 1000);
    say(`The server is busy. Your pictures are kept; trying again in ${left} s.`);
    await pause(Math.min(1, (heldUntil - performance.now()) / 1000) + 0.005);
  }
  say("");
  send();
}

let forgetting = 0;

function say(words, { isShort = false } = {}) {
  clearTimeout(forgetting);
  find("#notice").hidden = !words;
  find("#notice span").textContent = words;
  if (isShort) forgetting = setTimeout(say, 6000, "");
}

// -- what is shown ------------------------------------------------------------------------------------------------

const copy = name => find(`#${name}-template`).content.firstElementChild.cloneNode(true);

function makeTile(picture) {
  const tile = copy("tile");
  if (picture.url) tile.querySelector("img").src = picture.url;
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
  find("#no-preview").hidden = Boolean(picture.url);
  find("#no-preview").textContent = "There is nothing to show of this file.";
  photo.dataset.broken = "";
  if (picture.url) photo.src = picture.url;
  else photo.removeAttribute("src");
  photo.alt = picture.name;
  find("#name").textContent = find("#name").title = picture.name;
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
  const { length } = state.pictures;
  find("#place").textContent = length > 1 ? `${state.pictures.indexOf(state.current) + 1} of ${length}` : "";
  const finished = state.pictures.filter(({ status }) => ["done", "failed"].includes(status)).length;
  Object.assign(find("#progress"), { max: length || 1, value: finished, hidden: finished === length });
  if (picture !== state.current) return;
  find("#waiting").hidden = !["waiting", "sending"].includes(picture.status);
  find("#failure").hidden = picture.status !== "failed";
  find("#result").hidden = picture.status !== "done";
  if (picture.status === "failed") {
    find("#failure h2").textContent = `No answer for ${picture.name}`;
    find("#failure p").textContent = sentence(picture.error);
    find("#failure button").hidden = picture.isFinal;
  }
  if (picture.status === "done") showClasses(picture);
  showView();
  showSimilar();
}

function showClasses({ classes, took }) {
  const shown = state.isOpen ? classes : classes.slice(0, SHOWN);
  find("#classes").replaceChildren(...shown.map(({ name, probability }) => {
    const row = copy("class");
    // ImageNet's names are synonyms with commas between them: the first is what people call it.
    const [first] = name.split(/(?=, )/);
    row.querySelector(".name b").textContent = first;
    row.querySelector(".name span").textContent = name.slice(first.length);
    row.querySelector(".share").textContent = percent(probability);
    row.querySelector(".bar").style.width = `${probability * 100}%`;
    row.classList.toggle("likely", state.info.multi_label && probability >= 0.5);
    return row;
  }));
  find("#more").hidden = classes.length <= SHOWN;
  find("#more").textContent = state.isOpen ? "Show fewer" : `Show ${classes.length - SHOWN} more`;
  find("#more").setAttribute("aria-expanded", String(state.isOpen));
  if (!classes.length) {
    find("#took").textContent = "This model has no head, so it names no classes.";
    return;
  }
  const known = counted(state.info.num_classes, "class", "classes") + (state.info.multi_label ? ", each judged by itself" : "");
  find("#took").textContent = `${known}, answered in ${Math.round(took)} ms`;
}

// -- attention ---------------------------------------------------------------------------------------------------

let mapRequest = new AbortController();
let mapTimer = 0;

function showView() {
  const { attention } = state.info;
  const picture = state.current;
  const isMap = state.view === "attention" && picture.status === "done";
  for (const button of all("[data-view]")) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  find("#sliders").hidden = !isMap;
  find(".switch").hidden = find("#reason").hidden = picture.status === "failed";
  const layer = find("#layer"), head = find("#head");
  if (attention) [layer.max, head.max] = [attention.layers, attention.heads];
  [layer.value, head.value] = [state.layer, state.head];
  head.disabled = state.layer === 0; // rollout is of the mean over heads
  find("#layer-words").textContent = state.layer ? `${state.layer} of ${layer.max}` : "all, from first to last";
  find("#head-words").textContent = state.head && state.layer ? `${state.head} of ${head.max}` : `mean of ${head.max}`;
  showMap(isMap ? picture : null);
}

function showMap(picture) {
  mapRequest.abort();
  clearTimeout(mapTimer);
  const map = find("#map"), photo = find("#photo");
  const query = `layer=${state.layer ? state.layer - 1 : "rollout"}&head=${state.head && state.layer ? state.head - 1 : "mean"}`;
  const url = picture?.maps.get(query);
  find(".stage").dataset.busy = picture && !url ? "yes" : "";
  if (url) {
    map.src = url;
    map.alt = `Where the model attends in ${picture.name}`;
  } else if (picture) {
    // What is already shown stays until the next map is there.
    if (map.dataset.picture !== picture.url) map.hidden = true;
    mapTimer = setTimeout(askForMap, 90, picture, query);
  }
  map.hidden = !url && (!picture || map.dataset.picture !== picture.url);
  if (url) map.dataset.picture = picture.url;
  photo.hidden = !map.hidden || !state.current.url || photo.dataset.broken === "yes";
}

async function askForMap(picture, query) {
  mapRequest = new AbortController();
  const { signal } = mapRequest;
  try {
    const answer = await ask(`attention?${query}`, { method: "POST", body: form(picture), signal });
    picture.maps.set(query, URL.createObjectURL(await answer.blob()));
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 503) await hold(error.wait);
    else if (error.status === 401) return askForKey();
    else {
      state.view = "picture";
      find("#reason").textContent = sentence(error.message);
    }
  }
  if (!signal.aborted && picture === state.current) showView();
}

// -- similar pictures ----------------------------------------------------------------------------------------------

const thumbnails = new Map();

async function showSimilar() {
  const picture = state.current, part = find("#similar");
  part.hidden = !state.info.search || picture.status !== "done";
  if (part.hidden || part.picture === picture) return;
  part.picture = picture;
  part.querySelector("ul").replaceChildren();
  find("#similar-words").textContent = `From ${counted(state.info.search.images, "picture")}, the nearest first`;
  try {
    picture.similar ??= patiently(() => ask(`search?k=${SIMILAR}`, { method: "POST", body: form(picture) })).then(answer => answer.json());
    const { images } = await picture.similar;
    if (part.picture === picture) part.querySelector("ul").replaceChildren(...images.map(makeSimilar));
  } catch (error) {
    picture.similar = null;
    if (part.picture !== picture) return;
    part.picture = null;
    find("#similar-words").textContent = sentence(error.message);
  }
}

function makeSimilar({ index, name, similarity }) {
  const entry = copy("similar"), image = entry.querySelector("img");
  entry.querySelector(".name").textContent = name;
  entry.title = name;
  entry.querySelector(".small").textContent = `similarity ${similarity.toFixed(2)}`;
  if (!thumbnails.has(index)) {
    const got = patiently(() => ask(`thumbnail/${index}`)).then(answer => answer.blob()).then(URL.createObjectURL);
    thumbnails.set(index, got.catch(() => (thumbnails.delete(index), "")));
  }
  thumbnails.get(index).then(url => { image.hidden = !url; image.src = url; image.alt = name; });
  return entry;
}

async function patiently(request) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await request();
    } catch (error) {
      if (error.status !== 503 || tries === TRIES) throw error;
      await pause(error.wait);
    }
  }
}

// -- the key -----------------------------------------------------------------------------------------------------

const keyDialog = find("#key-dialog");

// A browser that forbids storage throws: then the key lasts as long as the page.
function keep(key) {
  try { sessionStorage.setItem(KEY, key); } catch {}
}

function kept() {
  try { return sessionStorage.getItem(KEY) ?? ""; } catch { return ""; }
}

function askForKey(words = sentence(state.key ? WORDS[401] : NO_KEY)) {
  find("#key-words").textContent = words;
  if (keyDialog.open) return;
  keyDialog.showModal();
  find("#key").select();
}

keyDialog.querySelector("form").onsubmit = event => {
  event.preventDefault();
  state.key = find("#key").value;
  keep(state.key);
  leaveKey();
};
keyDialog.querySelector(".cancel").onclick = refuseKey;
keyDialog.oncancel = refuseKey; // the escape key

function refuseKey() {
  const waiting = state.pictures.filter(({ status }) => status === "waiting");
  waiting.forEach(picture => { Object.assign(picture, { status: "failed", error: NO_KEY }); showTile(picture); });
  state.view = "picture";
  leaveKey();
}

// The dialog's own event of closing comes a frame later, when it may be open again.
function leaveKey() {
  keyDialog.close();
  send();
  if (state.current) show(state.current);
}

find("#key-button").onclick = () => askForKey("The key that this page sends to the server.");

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
  const { model, num_classes, image_size, latency_ms, key_required, attention, attention_reason } = state.info;
  document.title = `${model} · vitkit`;
  find("#model").textContent = model;
  find("#facts").replaceChildren(
    ...(num_classes ? [fact("Classes", num_classes.toLocaleString("en"))] : []),
    fact("Sees", [image_size].flat().reduce((height, width) => `${height} × ${width}`) + " px"),
    ...(latency_ms ? [fact("Answers within", latency_ms < 1000 ? `${Math.round(latency_ms)} ms` : `${latency_ms / 1000} s`)] : []),
  );
  find("#key-button").hidden = !key_required;
  find("[data-view=attention]").disabled = !attention;
  find("#reason").textContent = attention ? "" : sentence(attention_reason || "this model has no attention");
  document.body.dataset.state = "ready";
  if (key_required && !state.key) askForKey();
}

state.key = kept();
find("#notice button").onclick = start;
start();
