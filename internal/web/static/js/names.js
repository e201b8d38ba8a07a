// Names of machines: in the order in which people count, and by what they have in common.

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

// natural compares names so that rack2 comes before rack10.
export const natural = (a, b) => collator.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);

// prefixOf returns the part of a host name that names its group: rack12 of rack12-n03, web of
// web-01.example.org, node of node7.
export function prefixOf(name) {
  const host = /^[\d.]+$|:/.test(name) ? name : name.split(".")[0];
  const cut = host.search(/[-_][^-_]*$/);
  if (cut > 0) return host.slice(0, cut);
  return host.replace(/\d+$/, "").replace(/\.$/, "") || host;
}

// groupsOf divides a list by a name of each element: [{ name, list }] in natural order.
export function groupsOf(list, nameOf) {
  const groups = new Map();
  for (const one of list) {
    const name = nameOf(one);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(one);
  }
  return [...groups].sort(([a], [b]) => natural(a, b)).map(([name, of]) => ({ name, list: of }));
}
