// The ways into the page: files, folders, the clipboard, the camera, the keyboard, and its buttons.
"use strict";

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
  event.target.dataset.broken = "yes";
  find("#no-preview").hidden = !state.current?.url;
  find("#no-preview").textContent = "This browser cannot show this kind of picture. The server may still read it.";
};
for (const button of all("[data-view]")) button.onclick = () => look(button.dataset.view);
for (const name of ["layer", "head"]) find(`#${name}`).oninput = event => { state[name] = Number(event.target.value); showView(); };

function look(view) {
  if (!state.info.attention && view === "attention") return;
  state.view = view;
  if (state.info.attention) find("#reason").textContent = "";
  showView();
}

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
  gather([...event.dataTransfer.items]).then(add);
});

// The pictures among what was dropped, and those inside of folders.
async function gather(items) {
  const entries = items.map(item => item.webkitGetAsEntry?.() ?? item.getAsFile()).filter(Boolean);
  const found = [];
  const visit = async (entry, isInside) => {
    if (entry instanceof File) return found.push(entry);
    if (entry.isFile) {
      const file = await new Promise((done, fail) => entry.file(done, fail));
      if (!isInside || file.type.startsWith("image/")) found.push(file);
      return;
    }
    const reader = entry.createReader();
    for (let part; (part = await new Promise((done, fail) => reader.readEntries(done, fail))).length;)
      for (const inner of part) await visit(inner, true);
  };
  for (const entry of entries) await visit(entry, false).catch(() => {});
  if (!found.length) say("There is no picture in what you dropped.", { isShort: true });
  return found;
}

document.addEventListener("paste", event => {
  if (event.target.matches?.("input")) return;
  const pasted = event.clipboardData.files;
  if (pasted.length) add(pasted, pasted.length === 1 && /^image\.\w+$/.test(pasted[0].name) ? "Pasted picture" : "");
  else say("There is no picture in the clipboard.", { isShort: true });
});

// -- the camera: the system's on phones, ours elsewhere ----------------------------------------------------------------

const camera = find("#camera"), video = camera.querySelector("video");
const isPhone = matchMedia("(pointer: coarse)").matches;
if (isPhone) find("#about").textContent = "Choose pictures, or take a photo.";
const REASONS = { NotAllowedError: "This page may not use the camera: allow it in the browser.", NotFoundError: "No camera was found." };

async function shoot() {
  if (isPhone) return find("#shot").click();
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, facingMode: "environment" } });
    camera.showModal();
  } catch (error) {
    say(REASONS[error.name] ?? "The camera does not start. Another program may be using it.", { isShort: true });
  }
}

camera.querySelector(".primary").onclick = () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  if (!canvas.width) return;
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob(content => add([new File([content], "photo.jpg", { type: content.type })], "Photo"), "image/jpeg", 0.92);
  leaveCamera();
};
camera.querySelector(".cancel").onclick = leaveCamera;
camera.oncancel = leaveCamera;

function leaveCamera() {
  camera.close();
  video.srcObject?.getTracks().forEach(track => track.stop());
  video.srcObject = null;
}

for (const button of all(".shoot")) {
  button.hidden = !isPhone && !navigator.mediaDevices?.getUserMedia;
  button.onclick = shoot;
}

// -- the keyboard --------------------------------------------------------------------------------------------------

function step(by) {
  const { pictures, current } = state;
  const next = pictures[pictures.indexOf(current) + by];
  if (!next) return;
  const isFocused = find("#strip").contains(document.activeElement);
  choose(next);
  if (isFocused) next.tile.querySelector("button").focus();
}

const SHORTCUTS = {
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  a: () => look(state.view === "picture" ? "attention" : "picture"),
  o: () => find("#files").click(),
  Delete: () => remove(state.current),
};

document.addEventListener("keydown", event => {
  const isTyping = event.target.matches("input") || find("dialog[open]");
  const action = SHORTCUTS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || isTyping || event.ctrlKey || event.metaKey || event.altKey || (!state.current && event.key !== "o")) return;
  event.preventDefault();
  action();
});
