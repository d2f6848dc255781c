// The terminal that ours is compared with: jobs as JSON lines on stdin, states as JSON lines on stdout, in the same order.
//
// job: {"columns", "rows", "scrollback", "chunks": [{"data": base64} | {"resize": [columns, rows]}, ...]}
// answer: the normal form of ../xterm.py, or {"error": text} if xterm itself raised.

import { createInterface } from "node:readline";
import { once } from "node:events";
import unicode11 from "@xterm/addon-unicode11";
import headless from "@xterm/headless";

const { Terminal } = headless; // both are CommonJS, without named exports
const { Unicode11Addon } = unicode11;

// xterm's public cell has no colours of the second half of a wide character and draws hyperlinks as underlined, so the
// attribute words are read as they are stored; their layout is that of the pinned version.
const FG = { inverse: 0x4000000, bold: 0x8000000, underline: 0x10000000, blink: 0x20000000, invisible: 0x40000000, strike: 0x80000000 };
const BG = { italic: 0x4000000, dim: 0x8000000, overline: 0x40000000 };
const MODE = 0x3000000; // of a colour: 0 default, 1 and 2 palette, 3 RGB

function color(word) {
  switch (word & MODE) {
    case 0: return -1;
    case MODE: return 0x1000000 | (word & 0xffffff);
    default: return word & 0xff;
  }
}

function flags(fg, bg) {
  return (fg & FG.bold ? 1 : 0) | (bg & BG.dim ? 2 : 0) | (bg & BG.italic ? 4 : 0) | (fg & FG.underline ? 8 : 0) |
    (fg & FG.blink ? 16 : 0) | (fg & FG.inverse ? 32 : 0) | (fg & FG.invisible ? 64 : 0) | (fg & FG.strike ? 128 : 0) |
    (bg & BG.overline ? 256 : 0);
}

function row(buffer, y, columns) {
  const line = buffer.getLine(y);
  const cells = [];
  let used = 0;
  let cell;
  for (let x = 0; x < columns; x++) {
    cell = line.getCell(x, cell);
    const width = cell.getWidth();
    const text = cell.getChars() || (width ? " " : "");
    const attributes = [color(cell.fg), color(cell.bg), flags(cell.fg, cell.bg)];
    cells.push([text, width, ...attributes]);
    if (text !== " " || width !== 1 || attributes[0] !== -1 || attributes[1] !== -1 || attributes[2] !== 0) used = x + 1;
  }
  cells.length = used;
  return { wrapped: line.isWrapped, cells };
}

function rows(buffer, from, to, columns) {
  const found = [];
  for (let y = from; y < to; y++) found.push(row(buffer, y, columns));
  return found;
}

function state(terminal, title, answers) {
  const { cols: columns, rows: height, modes } = terminal;
  const { active, normal } = terminal.buffer;
  const alternate = active.type === "alternate";
  return {
    columns,
    rows: height,
    cursor: {
      x: Math.min(active.cursorX, columns - 1),
      y: active.cursorY,
      pending_wrap: active.cursorX === columns,
      visible: !terminal._core.coreService.isCursorHidden, // no public API
    },
    alternate,
    screen: rows(active, active.baseY, active.baseY + height, columns),
    main: alternate ? rows(normal, normal.baseY, normal.baseY + height, columns) : null,
    scrollback: rows(normal, 0, normal.baseY, columns),
    modes: {
      app_cursor: modes.applicationCursorKeysMode,
      app_keypad: modes.applicationKeypadMode,
      bracketed_paste: modes.bracketedPasteMode,
      insert: modes.insertMode,
      origin: modes.originMode,
      wraparound: modes.wraparoundMode,
      reverse_wraparound: modes.reverseWraparoundMode,
      focus: modes.sendFocusMode,
      mouse: modes.mouseTrackingMode,
    },
    title,
    answers,
  };
}

function render(job) {
  const terminal = new Terminal({
    cols: job.columns,
    rows: job.rows,
    scrollback: job.scrollback,
    allowProposedApi: true,
    logLevel: "off",
    windowOptions: { pushTitle: true, popTitle: true },
  });
  try {
    terminal.loadAddon(new Unicode11Addon());
    terminal.unicode.activeVersion = "11";
    let title = "";
    const answers = [];
    terminal.onTitleChange((text) => { title = text; });
    terminal.onData((text) => answers.push(Buffer.from(text, "utf8").toString("base64")));
    for (const chunk of job.chunks) {
      if (chunk.resize) terminal.resize(...chunk.resize);
      // The public write() is the same behind a timer of 1 ms a chunk, and an error in it could not be caught.
      else terminal._core.writeSync(Buffer.from(chunk.data, "base64"));
    }
    return state(terminal, title, answers);
  } finally {
    terminal.dispose();
  }
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  let answer;
  try {
    answer = render(JSON.parse(line));
  } catch (error) {
    answer = { error: String(error?.stack ?? error) };
  }
  if (!process.stdout.write(JSON.stringify(answer) + "\n")) await once(process.stdout, "drain");
}
