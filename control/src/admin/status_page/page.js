// Shows one view at a time. The part of the address after # names it: #services, #service=shop/web, #explain.
"use strict";

const element = (id) => document.getElementById(id);
// The server ends each response after one event, and the browser requests the next one. After this time, something is wrong.
const SILENCE_MAX_MS = 10_000;

let source = null;
let shown = null;
let lastEvent = Date.now();

// One Service is shown with all columns.
const isWide = () => element("wide").checked || location.hash.startsWith("#service=");

function create(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function rowOf(columns, cells) {
  const row = document.createElement("tr");
  const at = (header) => cells[columns.findIndex((column) => column.header === header)];
  cells.forEach((cell, n) => {
    if (columns[n].wide && !isWide()) return;
    const isService = columns[n].header === "NAME" && at("NAMESPACE") !== undefined;
    const data = create("td", isService ? "" : cell);
    data.classList.toggle("long", cell.length > 60);
    data.classList.toggle("none", cell === "<none>");
    if (isService) data.append(create("a", cell, { href: `#service=${at("NAMESPACE")}/${cell}` }));
    row.append(data);
  });
  return row;
}

function tableOf({ title, columns, rows }) {
  const wanted = element("filter").value.toLowerCase();
  const found = rows.filter((cells) => cells.some((cell) => cell.toLowerCase().includes(wanted)));
  const part = document.createElement("section");
  part.append(create("h2", found.length === rows.length ? `${title} (${rows.length})`
    : `${title} (${found.length} of ${rows.length})`));
  if (found.length > 0) {
    const table = document.createElement("table");
    const head = document.createElement("tr");
    for (const { header, wide } of columns) {
      if (!wide || isWide()) head.append(create("th", header, { scope: "col" }));
    }
    const body = document.createElement("tbody");
    body.append(...found.map((cells) => rowOf(columns, cells)));
    table.append(document.createElement("thead"), body);
    table.tHead.append(head);
    const scroll = create("div", "", { className: "scroll", tabIndex: 0 });
    scroll.append(table);
    part.append(scroll);
  }
  return part;
}

function show() {
  if (shown === null) return;
  document.title = `${shown.gateway} - Tidegate`;
  element("gateway").textContent = shown.gateway;
  const state = element("state");
  state.textContent = `${shown.state}, ${shown.ready ? "ready" : "not ready"}, ${shown.at}`;
  state.className = shown.ready && shown.degraded.length === 0 ? "good" : "bad";
  element("degraded").replaceChildren(...shown.degraded.map((fault) => create("li", fault)));
  element("facts").replaceChildren(
    ...shown.facts.flatMap(([name, value]) => [create("dt", name), create("dd", value)]));
  const places = [...document.querySelectorAll(".scroll")].map((place) => place.scrollLeft);
  element("tables").replaceChildren(...shown.tables.map(tableOf));
  document.querySelectorAll(".scroll").forEach((place, n) => { place.scrollLeft = places[n] ?? 0; });
}

function open() {
  const [view, service] = (location.hash.slice(1) || "overview").split("=");
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.hash === `#${view === "service" ? "services" : view}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const isForm = view === "explain";
  element("explain").hidden = !isForm;
  element("filtering").hidden = isForm;
  element("widening").hidden = isForm || view === "service";
  element("facts").replaceChildren();
  element("tables").replaceChildren();
  source?.close();
  // The form also shows the state of the gateway.
  const parameters = new URLSearchParams({ view: isForm ? "pools" : view });
  if (service) parameters.set("service", decodeURIComponent(service));
  source = new EventSource(`/live?${parameters}`);
  source.onmessage = (event) => {
    lastEvent = Date.now();
    shown = JSON.parse(event.data);
    if (isForm) shown.tables = [];
    show();
  };
}

function showSilence() {
  const isSilent = Date.now() - lastEvent > SILENCE_MAX_MS;
  if (!isSilent) return;
  element("state").className = "bad";
  element("state").textContent = `no answer since ${new Date(lastEvent).toLocaleTimeString()}`;
  // After a refused request, the browser does not try again.
  if (source?.readyState === EventSource.CLOSED) open();
}

async function explain(event) {
  event.preventDefault();
  const answer = await fetch(`/explain?${new URLSearchParams(new FormData(event.target))}`);
  const found = await answer.json();
  element("fault").textContent = found.error ?? "";
  element("steps").replaceChildren(
    ...(found.steps ?? []).map((one) => create("li", `${one.step}: ${one.found}`)));
  const backend = found.backend ? ` to ${found.backend}` : "";
  element("verdict").textContent = found.verdict ? `${found.verdict} (${found.reason})${backend}` : "";
}

function pressed(event) {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const links = document.querySelectorAll("nav a");
  if (event.key === "/") {
    event.preventDefault();
    element("filter").focus();
  } else if (event.key >= "1" && event.key <= String(links.length)) {
    location.hash = links[Number(event.key) - 1].hash;
  }
}

element("filter").addEventListener("input", show);
element("wide").addEventListener("change", show);
element("explain").addEventListener("submit", explain);
document.addEventListener("keydown", pressed);
window.addEventListener("hashchange", open);
setInterval(showSilence, 1_000);
open();
