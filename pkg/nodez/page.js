// Sorts and filters the rows that the server lists, and requests the page again on demand. Without
// this script, the table has the same rows, with the failing nodes first.
document.addEventListener('DOMContentLoaded', start);

function start() {
  'use strict';
  const byId = (id) => document.getElementById(id);
  const table = byId('nodes'), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const query = byId('query'), shown = byId('shown'), auto = byId('auto');
  let rows = []; // {tr, text}, in the order of the server
  const wanted = {filter: '', value: '', sort: 'state', descending: false};

  const format = (n) => n.toLocaleString('en');

  function readRows() {
    rows = [...body.rows].map((tr) => ({tr, text: null}));
  }

  // textOf returns the text of a row in lower case.
  function textOf(row) {
    return row.text ??= row.tr.textContent.toLowerCase();
  }

  function matches(row, words) {
    if (wanted.filter && row.tr.dataset[wanted.filter] !== wanted.value) return false;
    return words.every((word) => textOf(row).includes(word));
  }

  // sorted returns the rows in the wanted order. Rows without a value come last.
  function sorted(list) {
    const column = heads.findIndex((head) => head.dataset.key === wanted.sort);
    if (column < 0) return list;
    const sign = wanted.descending ? -1 : 1;
    const keyed = list.map((row) => {
      const cell = row.tr.cells[column], value = cell.dataset.v;
      return {row, key: value === undefined ? cell.textContent : value === '' ? '' : Number(value)};
    });
    const order = new Intl.Collator('en', {numeric: true});
    keyed.sort((a, b) => {
      if (a.key === '' || b.key === '') return (a.key === '') - (b.key === '');
      return sign * (typeof a.key === 'number' ? a.key - b.key : order.compare(a.key, b.key));
    });
    return keyed.map((k) => k.row);
  }

  function render() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = sorted(rows.filter((row) => matches(row, words)));
    body.replaceChildren(...found.map((row) => row.tr));
    const total = Number(table.dataset.total);
    const listed = rows.length < total ? `the first ${format(rows.length)} of ${format(total)} nodes` : `${format(total)} nodes`;
    shown.textContent = found.length === rows.length ? listed : `${format(found.length)} of ${listed}`;
    for (const head of heads) {
      if (head.dataset.key !== wanted.sort) head.removeAttribute('aria-sort');
      else head.setAttribute('aria-sort', wanted.descending ? 'descending' : 'ascending');
    }
    for (const chip of document.querySelectorAll('.chips button')) {
      chip.disabled = false;
      chip.setAttribute('aria-pressed', chip.dataset.filter === wanted.filter && chip.dataset.value === wanted.value);
    }
  }

  // The fragment of the address keeps what is wanted, so that it can be sent to others.
  function save() {
    const params = new URLSearchParams();
    if (wanted.filter) params.set(wanted.filter, wanted.value);
    if (query.value) params.set('q', query.value);
    if (wanted.sort !== 'state' || wanted.descending) params.set('sort', (wanted.descending ? '-' : '') + wanted.sort);
    history.replaceState(null, '', params.size ? '#' + params : location.pathname + location.search);
  }

  function load() {
    const params = new URLSearchParams(location.hash.slice(1));
    wanted.filter = ['state', 'reason'].find((name) => params.has(name)) ?? '';
    wanted.value = wanted.filter ? params.get(wanted.filter) : '';
    query.value = params.get('q') ?? '';
    const sort = params.get('sort') ?? 'state';
    wanted.descending = sort.startsWith('-');
    wanted.sort = sort.replace(/^-/, '');
  }

  function change() {
    save();
    render();
  }

  // A second click on a chip removes the filter.
  function onChip(chip) {
    const {filter, value} = chip.dataset;
    const again = filter === wanted.filter && value === wanted.value;
    wanted.filter = again ? '' : filter;
    wanted.value = again ? '' : value;
    change();
  }

  // The first click on a number shows the largest ones.
  function onHead(head) {
    const {key, number} = head.dataset;
    wanted.descending = key === wanted.sort ? !wanted.descending : number !== undefined;
    wanted.sort = key;
    change();
  }

  function tick() {
    const seconds = Math.round((Date.now() - received) / 1000);
    byId('since').textContent = seconds < 2 ? '' : seconds < 120 ? ` (${seconds} s ago)` : ` (${Math.round(seconds / 60)} min ago)`;
  }

  let received = Date.now(), refreshing = false;
  async function refresh() {
    if (refreshing) return;
    refreshing = true;
    try {
      const response = await fetch(location.pathname + location.search, {headers: {Accept: 'text/html'}, cache: 'no-store'});
      const text = await response.text();
      if (!response.ok) throw new Error(`${response.status} ${text.slice(0, 200)}`);
      replace(new DOMParser().parseFromString(text, 'text/html'));
      received = Date.now();
      failed('');
    } catch (error) {
      failed(`Refresh failed: ${error.message}`);
    }
    refreshing = false;
    tick();
  }

  function failed(text) {
    let note = document.querySelector('.refresh .error');
    if (!note) {
      note = document.createElement('span');
      note.className = 'error';
      note.setAttribute('role', 'alert');
      byId('reload').before(note);
    }
    note.textContent = text;
  }

  // replace shows another report, with the same filter, order, focus and open details.
  function replace(page) {
    const open = new Set();
    for (const {tr} of rows) if (tr.querySelector('details[open]')) open.add(tr.cells[0].textContent);
    const focused = document.activeElement?.dataset, next = page.getElementById('nodes');
    const exporters = byId('exporters')?.open;
    byId('summary').replaceWith(document.adoptNode(page.getElementById('summary')));
    if (exporters && byId('exporters')) byId('exporters').open = true;
    byId('time').replaceWith(document.adoptNode(page.getElementById('time')));
    byId('more').replaceWith(document.adoptNode(page.getElementById('more')));
    table.className = next.className;
    table.dataset.total = next.dataset.total;
    body.replaceChildren(...[...next.tBodies[0].rows].map((tr) => document.adoptNode(tr)));
    document.querySelector('.empty')?.remove();
    readRows();
    for (const {tr} of rows) {
      const details = tr.querySelector('details');
      if (details && open.has(tr.cells[0].textContent)) details.open = true;
    }
    render();
    if (focused?.filter !== undefined) {
      [...document.querySelectorAll('.chips button')]
        .find((chip) => chip.dataset.filter === focused.filter && chip.dataset.value === focused.value)?.focus();
    }
  }

  document.addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (!button) return;
    if (button.dataset.filter !== undefined) onChip(button);
    else if (button.closest('thead')) onHead(button.closest('th'));
    else if (button.id === 'reload') refresh();
  });
  query.addEventListener('input', change);
  addEventListener('hashchange', () => { load(); render(); });
  let timer = 0;
  auto.addEventListener('change', () => {
    clearInterval(timer);
    if (auto.checked) timer = setInterval(() => document.hidden || refresh(), auto.dataset.seconds * 1000);
  });
  setInterval(tick, 1000);

  for (const button of table.tHead.querySelectorAll('button')) button.disabled = false;
  byId('refresh').hidden = byId('find').hidden = false;
  auto.checked = false;
  readRows();
  load();
  render();
}
