// Shows what is known of a point below its figure when the point is pointed at, touched or reached by keyboard. Of
// points that lie on each other, the nearest is shown.
const distance = (point, event) => {
  const box = point.getBoundingClientRect();
  return Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
};

const nearest = (event) => {
  const above = event.type == "focusin" ? [event.target] : document.elementsFromPoint(event.clientX, event.clientY);
  const points = above.map((element) => element.closest(".point")).filter(Boolean);
  return points.sort((a, b) => distance(a, event) - distance(b, event))[0];
};

const show = (figure, point) => {
  for (const old of figure.querySelectorAll(".shown")) old.classList.remove("shown");
  for (const same of figure.querySelectorAll(`[data-point="${point.dataset.point}"]`)) same.classList.add("shown");
  const facts = document.getElementById(point.dataset.point).content.cloneNode(true);
  const details = figure.querySelector(".details");
  details.classList.add("used");
  details.replaceChildren(facts);
};

// An arrow key moves to the next or the previous point of the drawing, around its ends.
const move = (event) => {
  const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
  const point = event.target.closest(".point");
  if (!step || !point) return;
  event.preventDefault();
  const all = [...point.ownerSVGElement.querySelectorAll(".point")];
  all[(all.indexOf(point) + step + all.length) % all.length].focus();
};

for (const figure of document.querySelectorAll("figure.pointed")) {
  for (const kind of ["pointermove", "click", "focusin"]) {
    figure.addEventListener(kind, (event) => {
      const point = nearest(event);
      if (point) show(figure, point);
    });
  }
  figure.addEventListener("keydown", move);
}

// A click on a heading sorts its table by that column, another click the other way round. Cells without a number stand last.
const number = (cell) => {
  const found = cell.textContent.replaceAll(",", "").replace(/^</, "").match(/^[-+]?[0-9.]+(e[-+]?[0-9]+)?/);
  const unit = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40}[cell.textContent.match(/[KMGT]iB/)] ?? 1;
  return found ? Number(found[0]) * unit : NaN;
};

const before = (a, b, down) => {
  const [x, y] = [number(a), number(b)];
  const order = isNaN(x) && isNaN(y) ? a.textContent.localeCompare(b.textContent) : x - y;
  return isNaN(x) - isNaN(y) || (down ? -order : order);
};

const sort = (button) => {
  const heading = button.closest("th");
  const column = [...heading.parentElement.children].indexOf(heading);
  const down = heading.ariaSort == "ascending";
  for (const other of heading.parentElement.children) other.ariaSort = null;
  heading.ariaSort = down ? "descending" : "ascending";
  const body = heading.closest("table").tBodies[0];
  body.append(...[...body.rows].sort((a, b) => before(a.cells[column], b.cells[column], down)));
};

for (const button of document.querySelectorAll("th [role=button]")) {
  button.addEventListener("click", () => sort(button));
  button.addEventListener("keydown", (event) => {
    if (event.key != "Enter" && event.key != " ") return;
    event.preventDefault();
    sort(button);
  });
}

// A link to what is folded opens it, and what is folded around it.
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target?.closest("details");
  for (let around = fold; around; around = around.parentElement.closest("details")) around.open = true;
  if (fold) target.scrollIntoView();
};

addEventListener("hashchange", unfold);
unfold();
