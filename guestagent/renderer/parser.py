"""The tokenizer: bytes in, calls out.

The automaton is that of the VT500 (vt100.net/emu/dec_ansi_parser) as xterm.js has it, over UTF-8:

=================  =============================================================================================
GROUND             text is printed, controls are executed
ESCAPE             after ESC; with intermediates in `seen`
CSI                after ``ESC [``; `seen` is what came behind it
CSI_IGNORE         a CSI that cannot be one any more: up to its final byte
OSC                after ``ESC ]``; `seen` is the payload.  It ends with BEL, ST, or the ESC of whatever follows
DCS                after ``ESC P``; `seen` are parameters and intermediates
DCS_PAYLOAD        behind the final byte; `seen` is all of it, as far as anybody will read it
DCS_IGNORE, STRING up to ST: a malformed DCS; SOS, PM and APC
=================  =============================================================================================

Anywhere: CAN and SUB abort, ESC begins anew, other C0 controls are executed inside of ESC and CSI sequences and dropped
inside of strings.  C1 controls count where they are encoded in UTF-8; bytes that are not UTF-8 are dropped.

Whole sequences, which is nearly all of them, are cut out by one regular expression and looked up; the automaton runs only
for what is unusual or cut in two.

Invariants
    nothing raises; what is kept between two feeds is bounded
    :meth:`pending` behind a GROUND parser puts it into the state of this one
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

Params = tuple[int, ...]
Action = tuple[Callable[[Params], None], Params] | tuple[Callable[[bytes], None], bytes]

LONGEST_PARAMS = 4096  # bytes; 32 parameters of 10 digits are 352
LONGEST_PAYLOAD = 65536  # bytes of an OSC or DCS that anybody could want; longer ones are dropped whole
MAX_PARAM = 0x7FFFFFFF
MAX_PARAMS = 32
_CACHED = 4096  # sequences whose meaning is remembered; a full-screen program has some hundreds


class Screen(Protocol):
    """What the parser calls."""

    join: int  # columns of the character just printed, which a mark may join; 0 behind anything else
    csi: dict[bytes, Callable[[Params], None]]  # private prefix + intermediates + final byte -> handler
    esc: dict[bytes, Callable[[], None]]  # intermediates + final byte -> handler
    control: dict[int, Callable[[], None]]  # C0 and C1

    def draw(self, data: str) -> None: ...
    def newline(self) -> None: ...
    def interrupted(self) -> None: ...
    def sgr(self, params: bytes) -> None: ...
    def osc(self, ident: int, payload: str) -> None: ...
    def dcs(self, kind: bytes, payload: str) -> None: ...


class State(Enum):
    GROUND = auto()
    ESCAPE = auto()
    CSI = auto()
    CSI_IGNORE = auto()
    OSC = auto()
    DCS = auto()
    DCS_PAYLOAD = auto()
    DCS_IGNORE = auto()
    STRING = auto()


_TOKEN = re.compile(
    rb"(?:[ -~\x80-\xc1\xc3-\xff]+|\xc2(?![\x80-\x9f]))+(?:\r\n)?"  # text
    rb"|\x1b\[[<=>?]?[0-9:;]*[ -/]*[@-~]"  # CSI
    rb"|\r\n|[\x00-\x1a\x1c-\x1f]"  # C0
    rb"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"  # ESC
    rb"|\x1b\][ -~]*(?:\x07|\x1b\\)"  # OSC
    rb"|\x7f+|[\s\S]"  # DEL is nothing; the rest is for the automaton
)
_CSI = re.compile(rb"([<=>?]?)([0-9:;]*)([ -/]*)")
_OSC_PAYLOAD = re.compile(rb"(?:[ -\x7f\x80-\xc1\xc3-\xff]+|\xc2(?![\x80-\x9f]))+")
_DCS_PAYLOAD = re.compile(rb"(?:[\x00-\x17\x19\x1c-\x7f\x80-\xc1\xc3-\xff]+|\xc2(?![\x80-\x9f]))+")
_DROPPED = re.compile(rb"[\x00-\x17\x19\x1c-\x7f]+")
_CHARACTER = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_CUT_CHARACTER = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_C1 = {bytes((code,)) for code in range(0x80, 0xA0)}
_BOM = "\ufeff"  # xterm.js drops it anywhere


def parse_params(text: bytes) -> Params:
    """Parameters without their sub-parameters; a missing one is 0."""
    if len(text) > LONGEST_PARAMS:
        return (0,)
    return tuple(
        min(int(part.partition(b":")[0].lstrip(b"0")[:11] or b"0"), MAX_PARAM) for part in text.split(b";")[:MAX_PARAMS]
    )


def decode(text: bytes) -> str:
    found = text.decode("utf-8", "ignore")
    return found.replace(_BOM, "") if _BOM in found else found


class Parser:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._state = State.GROUND
        self._seen = bytearray()
        self._dropped = False  # the payload was too long
        self._cut = b""  # an unfinished character
        self._cache: dict[bytes, Action] = {}
        self.fed = 0  # bytes, ever
        # The value of `fed` just behind the sequence that is being executed; strings end with the ESC of their ST.
        self.at = 0

    @property
    def idle(self) -> bool:
        """Between two sequences and two characters."""
        return self._state is State.GROUND and not self._cut

    def pending(self) -> bytes:
        """Bytes that put an idle parser into this one's state."""
        seen = bytes(self._seen)
        match self._state:
            case State.GROUND:
                begun = b""
            case State.ESCAPE:
                begun = b"\x1b" + seen
            case State.CSI:
                begun = b"\x1b[" + seen
            case State.CSI_IGNORE:
                begun = b"\x1b[0<"
            case State.OSC:
                begun = b"\x1b]x" if self._dropped else b"\x1b]" + seen  # x is no number: dropped as well
            case State.DCS:
                begun = b"\x1bP" + seen
            case State.DCS_PAYLOAD if not self._dropped:
                begun = b"\x1bP" + seen
            case State.DCS_IGNORE | State.DCS_PAYLOAD:
                begun = b"\x1bP0<"
            case State.STRING:
                begun = b"\x1b_"
        return begun + self._cut

    # --- whole sequences ----------------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        base = self.fed - len(self._cut)  # offset of the first byte of what is parsed now
        self.fed += len(data)
        if self._cut:
            data = self._cut + data
            self._cut = b""
        if data and data[-1] >= 0x80 and (cut := _CUT_CHARACTER.search(data, max(len(data) - 3, 0))):
            self._cut = cut[0]
            data = data[: cut.start()]
        position, size = 0, len(data)
        while position < size:
            if self._state is not State.GROUND:
                position = self._run(data, position, base)
            if position < size:
                position = self._ground(data, position, base)

    def _ground(self, data: bytes, position: int, base: int) -> int:
        """Whole tokens, up to the end or to what the automaton has to do."""
        screen = self._screen
        draw, newline, cache, control = screen.draw, screen.newline, self._cache, screen.control
        for match in _TOKEN.finditer(data, position):
            token = match[0]
            first = token[0]
            if first >= 0x20:
                if token.isascii():
                    if first == 0x7F:
                        continue
                    if token[-1] == 10:
                        if len(token) > 2:
                            draw(str(token[:-2], "ascii"))
                        newline()
                        screen.join = 0
                    else:
                        draw(str(token, "ascii"))
                elif first == 0xC2 and data[match.start() + 1 : match.start() + 2] in _C1:
                    self.at = base + match.start() + 2
                    self._c1(data[match.start() + 1])
                    return match.start() + 2
                else:
                    ends = token[-1] == 10
                    if text := decode(token[:-2] if ends else token):
                        draw(text)
                    if ends:
                        newline()
                        screen.join = 0
            elif first == 0x1B:
                if (action := cache.get(token)) is None:
                    if len(token) == 1:
                        self._begin(State.ESCAPE)
                        return match.end()
                    self.at = base + match.end()
                    if token[1] == 0x5D and token[-1] != 7:
                        self.at -= 1  # it ends with the ESC of the ST, however it is cut
                    if (action := self._look_up(token)) is None:
                        continue
                self.at = base + match.end()
                function, argument = action
                function(argument)  # type: ignore[arg-type]
                screen.join = 0
            elif len(token) == 2:
                newline()
                screen.join = 0
            else:
                if (run := control.get(first)) is not None:
                    run()
                screen.join = 0
        return len(data)

    def _look_up(self, token: bytes) -> Action | None:
        """The meaning of a whole ESC sequence; None where it was executed already."""
        screen = self._screen
        kind = token[1]
        if kind == 0x5D:  # OSC
            self._end_osc(token[2 : -1 if token[-1] == 7 else -2])
            screen.join = 0
            return None
        if kind != 0x5B:
            if (run := screen.esc.get(token[1:])) is not None:
                run()
            screen.join = 0
            return None
        action = self._csi_action(token[2:-1], token[-1:])
        if action is not None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            if len(token) <= 64:
                self._cache[token] = action
        else:
            screen.join = 0
        return action

    def _csi_action(self, body: bytes, final: bytes) -> Action | None:
        match = _CSI.fullmatch(body)
        if match is None:
            return None
        prefix, params, intermediates = match.groups()
        kind = prefix + intermediates + final
        if kind == b"m":
            return (self._screen.sgr, params)
        handler = self._screen.csi.get(kind)
        return None if handler is None else (handler, parse_params(params))

    # --- the automaton ------------------------------------------------------------------------------
    def _begin(self, state: State) -> None:
        self._state = state
        self._seen.clear()
        self._dropped = False

    def _run(self, data: bytes, position: int, base: int) -> int:
        """Until the state is GROUND or the data ends; the position reached."""
        size = len(data)
        while position < size:
            position = self._payload(data, position)
            if position >= size:
                break
            code = data[position]
            position += 1
            if code >= 0x80:
                match = _CHARACTER.match(data, position - 1)
                if match is None:
                    continue
                position = match.end()
                if match[0] == b"\xef\xbb\xbf":
                    continue
                code = data[position - 1] if match[0] <= b"\xc2\x9f" else 0xA0
            self.at = base + position
            self._step(code)
            if self._state is State.GROUND:
                break
        return position

    def _payload(self, data: bytes, position: int) -> int:
        """The inside of strings, in one piece."""
        if self._state is State.OSC:
            match = _OSC_PAYLOAD.match(data, position)
        elif self._state is State.DCS_PAYLOAD:
            match = _DCS_PAYLOAD.match(data, position)
        elif self._state in (State.STRING, State.DCS_IGNORE):
            match = _DROPPED.match(data, position)
            return position if match is None else match.end()
        else:
            return position
        if match is None:
            return position
        if len(self._seen) + match.end() - position > LONGEST_PAYLOAD:
            self._dropped = True
            self._seen.clear()
        if not self._dropped:
            self._seen += match[0]
        return match.end()

    def _step(self, code: int) -> None:
        """One character outside of GROUND; 0xA0 stands for any that is not ASCII."""
        state = self._state
        if code == 0x1B:
            self._end_string(success=True)
            self._begin(State.ESCAPE)
        elif code in (0x18, 0x1A):
            self._end_string(success=False)
            self._control(code)
            self._begin(State.GROUND)
        elif 0x80 <= code < 0xA0:
            self._end_string(success=code == 0x9C)
            self._c1(code)
        elif code == 0xA0:  # belongs into strings; ends the others without being printed
            if state not in (State.CSI_IGNORE, State.DCS_IGNORE):
                self._begin(State.GROUND)
                self._screen.interrupted()
        elif state is State.OSC:
            if code == 0x07:
                self._end_string(success=True)
                self._begin(State.GROUND)
        elif state is State.DCS:
            self._dcs(code)
        elif state in (State.ESCAPE, State.CSI, State.CSI_IGNORE):
            if code < 0x20:
                self._control(code)
            elif code != 0x7F:
                self._sequence(code)

    def _control(self, code: int) -> None:
        if (run := self._screen.control.get(code)) is not None:
            run()
        self._screen.join = 0

    def _c1(self, code: int) -> None:
        begins = {
            0x90: State.DCS,
            0x98: State.STRING,
            0x9B: State.CSI,
            0x9D: State.OSC,
            0x9E: State.STRING,
            0x9F: State.STRING,
        }
        if code in begins:
            self._begin(begins[code])
            return
        self._begin(State.GROUND)
        if code == 0x9C:
            self._screen.interrupted()
        else:
            self._control(code)

    def _sequence(self, code: int) -> None:
        seen = self._seen
        if self._state is State.ESCAPE:
            if code < 0x30:
                seen.append(code)
                if len(seen) > 16:  # no sequence has more than two intermediates
                    self._begin(State.ESCAPE)
                    seen += b"    "
                return
            opens = {
                0x50: State.DCS,
                0x58: State.STRING,
                0x5B: State.CSI,
                0x5D: State.OSC,
                0x5E: State.STRING,
                0x5F: State.STRING,
            }
            if not seen and code in opens:
                self._begin(opens[code])
                return
            kind = bytes(seen) + bytes((code,))
            self._begin(State.GROUND)
            if (run := self._screen.esc.get(kind)) is not None:
                run()
            self._screen.join = 0
        elif code < 0x40:
            if self._state is State.CSI:
                seen.append(code)
                if len(seen) > LONGEST_PARAMS or _CSI.fullmatch(seen) is None:
                    self._begin(State.CSI_IGNORE)
        elif self._state is State.CSI_IGNORE:
            self._begin(State.GROUND)
        else:
            action = self._csi_action(bytes(seen), bytes((code,)))
            self._begin(State.GROUND)
            if action is not None:
                action[0](action[1])  # type: ignore[arg-type]
            self._screen.join = 0

    def _dcs(self, code: int) -> None:
        if code < 0x20 or code == 0x7F:
            return
        self._seen.append(code)
        if code >= 0x40:
            self._state = State.DCS_PAYLOAD
        elif len(self._seen) > LONGEST_PARAMS or _CSI.fullmatch(self._seen) is None:
            self._begin(State.DCS_IGNORE)

    def _end_string(self, success: bool) -> None:
        """An OSC or DCS ends here, if one is open."""
        if self._state is State.OSC:
            if success and not self._dropped:
                self._end_osc(bytes(self._seen))
            self._screen.join = 0
        elif self._state is State.DCS_PAYLOAD:
            if success and not self._dropped and (match := re.match(rb"([<=>?]?)[0-9:;]*([ -/]*[@-~])", self._seen)):
                self._screen.dcs(match[1] + match[2], decode(bytes(self._seen[match.end() :])))
            self._screen.join = 0

    def _end_osc(self, body: bytes) -> None:
        ident, _, payload = body.partition(b";")
        if ident.isdigit() and len(ident) <= 9 and len(payload) <= LONGEST_PAYLOAD:
            self._screen.osc(int(ident), decode(payload))
