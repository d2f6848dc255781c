"""`python show.py NAME`: writes one of the shows below, a frame for each key; recorded as part of the corpus.

These are what programs on the machine that records do not write by themselves.  Only the standard library, since it runs as a copy.
"""

# ruff: noqa: RUF001  (ambiguous characters are the point)

from __future__ import annotations

import itertools
import os
import random
import sys
import termios
import tty
from collections.abc import Callable, Iterator

Frames = Iterator[str | bytes]
SHOWS: dict[str, Callable[[], Frames]] = {}

ESC = "\x1b"
CSI = "\x1b["


def show(function: Callable[[], Frames]) -> Callable[[], Frames]:
    SHOWS[function.__name__.replace("_", "-")] = function
    return function


# Progress


@show
def progress_pip() -> Frames:
    for name, total in (("wheel", 40), ("trio", 400), ("hypothesis", 5000)):
        yield f"Collecting {name}\r\n  Downloading {name}-1.0-py3-none-any.whl ({total} kB)\r\n"
        for done in range(0, 41, 4):
            yield (
                f"\r{CSI}2K     {CSI}38;2;114;156;31m{'━' * done}{CSI}0m{CSI}38;5;237m╺{'━' * (40 - done)}{CSI}0m "
                f"{CSI}32m{total * done // 40}/{total} kB{CSI}0m {CSI}31m1.{done} MB/s{CSI}0m eta {CSI}36m0:00:0{done % 9}{CSI}0m"
            )
        yield "\r\n"
    yield f"{CSI}?25hSuccessfully installed hypothesis-1.0 trio-1.0 wheel-1.0\r\n"


@show
def progress_apt() -> Frames:
    """A bar in the last row, below a scroll region that is set once."""
    yield f"Reading package lists...\r\n\r\n{ESC}7{CSI}1;23r{ESC}8{CSI}1A"
    for done in range(0, 101, 10):
        for number in range(3):
            yield f"Unpacking package-{done + number}:amd64 (1.{number}-2) ...\r\n"
        bar = "#" * (done // 2)
        yield f"{ESC}7{CSI}24;0f{CSI}42m{CSI}30mProgress: [{done:3}%]{CSI}49m{CSI}39m [{bar:.<50}] {ESC}8"
    yield f"{ESC}7{CSI}1;24r{ESC}8{CSI}1A{CSI}J"
    yield "Processing triggers for man-db (2.11.2-2) ...\r\n"


@show
def progress_cargo() -> Frames:
    """A bar that stays below what is printed above it."""
    crates = ["libc", "cfg-if", "proc-macro2", "unicode-ident", "syn", "quote", "serde", "tokio"]
    for done, crate in enumerate(crates):
        yield f"\r{CSI}K{CSI}1m{CSI}32m   Compiling{CSI}0m {crate} v1.0.{done}\r\n"
        yield f"{CSI}1m{CSI}36m    Building{CSI}0m [{'=' * done * 3 + '>':<24}] {done}/{len(crates)}: {', '.join(crates[done : done + 3])}\r"
    yield f"{CSI}K{CSI}1m{CSI}32m    Finished{CSI}0m dev [unoptimized + debuginfo] target(s) in 1.23s\r\n"


@show
def progress_layers() -> Frames:
    """Several bars at once, each reached by moving the cursor up, as docker does."""
    layers = ["a3ed95caeb02", "5d9fd15d0eb1", "3b2f34dfb1c2", "9a1cf1e6e1d3", "c0ffee00beef"]
    yield "".join(f"{layer}: Pulling fs layer\r\n" for layer in layers)
    chance = random.Random(4)
    for done in range(1, 26):
        index = chance.randrange(len(layers))
        up = len(layers) - index
        yield f"{CSI}{up}A{CSI}2K\r{layers[index]}: Downloading [{'=' * done + '>':<26}] {done}.{done}MB/26MB\r{CSI}{up}B"
    yield "Digest: sha256:0123456789abcdef\r\n"


@show
def progress_spinner() -> Frames:
    yield f"{CSI}?25l"
    for index, glyph in zip(range(24), itertools.cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), strict=False):
        yield f"\r{CSI}36m{glyph}{CSI}39m working {'.' * (index % 4)}{CSI}K"
    yield f"\r{CSI}K{CSI}32m✔{CSI}39m done\r\n{CSI}?25h"


# Text


@show
def text_cjk() -> Frames:
    yield "漢字かな交じり文、全角の句読点。カタカナとｶﾀｶﾅ。\r\n한국어 글자와 조합형 한\u1112\u1161\u11ab\r\n中文：简体与繁體\r\n"
    yield "ａｂｃ全角ＡＢＣ " * 12 + "\r\n"
    yield "x" * 79 + "漢" + "字\r\n" + "x" * 78 + "漢字\r\n"
    yield f"漢字{CSI}2Dx{CSI}1G{CSI}1Cy\r\n漢字漢字{CSI}4D{CSI}K\r\n漢字漢字{CSI}3D{CSI}1K\r\n漢字漢字\r{CSI}1C{CSI}P\r\n漢字漢字\r{CSI}1C{CSI}@\r\n漢字漢字\r{CSI}1C{CSI}X\r\n"


@show
def text_emoji() -> Frames:
    yield "👨‍👩‍👧‍👦 family 👩🏽‍💻 coder 🏳️‍🌈 flag 🇩🇪 🇯🇵 regions 👍🏿 thumb\r\n"
    yield "❤ text ❤️ emoji ☎︎ text ☎️ emoji ✈️ 1️⃣ #️⃣ ⚠️ ✔️ ☀️\r\n"
    yield "😀😃😄😁" * 11 + "\r\n" + "🧑‍🚀" * 30 + "\r\n"
    yield f"{CSI}41m🎉{CSI}0m\b\bx {CSI}1m🎉{CSI}22m{CSI}1Dy\r\n"
    yield "𝒳𝓎𝓏 𐍈 🀄 ⌚⏰ ⚽⚾ ⛄\r\n"


@show
def text_emoji_new() -> Frames:
    """Of Unicode 14 and 15, which xterm.js does not know; apart, so that they do not hide what else may differ."""
    yield "🫠🫡🪿\r\n"


@show
def text_combining() -> Frames:
    yield "e\u0301 a\u0308 n\u0303 Z\u0351\u036b\u0343\u036a\u0302a\u0306\u0305l\u0303\u0310g\u033e\u0360o\u0307\r\n"
    yield "\u0301 at the start\r\n" + "x" * 80 + "\u0301y\r\n" + "ก็ ไม่ ทำ ที่ นี่\r\n"
    yield "हिन्दी देवनागरी क्षत्रिय \u0915\u094d\u0937\r\nதமிழ் বাংলা ગુજરાતી\r\n"
    yield f"漢\u0301字\u0308{CSI}2D\u0302x\r\na{CSI}5C\u0301b\r\n"
    yield "zero\u200bwidth\u200cspace\u200djoiner\ufeffbom\u2060wj soft\u00adhyphen\r\n"


@show
def text_rtl() -> Frames:
    yield "שלום עולם, עברית עם ניקוד: שָׁלוֹם\r\nمرحبا بالعالم، العربية مع تشكيل: مَرْحَبًا\r\n"
    yield "\u202bembedded\u202c \u2067isolated\u2069 \u200fmark\u200e end\r\nفارسی ۱۲۳ و English mixed עברית 456\r\n"


@show
def text_invalid_utf8() -> Frames:
    yield b"latin-1: \xe9\xe8\xfc \xa9 end\r\n"
    yield b"cut: \xe6\xbc end \xf0\x9f\x98 end \xc3\r\n"
    yield b"overlong: \xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf end\r\n"
    yield b"surrogates: \xed\xa0\x80\xed\xb0\x80 above: \xf4\x90\x80\x80 \xf8\x88\x80\x80\x80 \xff\xfe end\r\n"
    yield b"\x80\x81 lone \xbf\xbf\xbf then \xe6\x1b[1mbold\xbc\xa2\x1b[0m\r\n"
    yield b"C1 in UTF-8: \xc2\x9b31mred?\xc2\x9b0m \xc2\x85next\xc2\x84index\xc2\x8dri\r\n"
    yield b"split \xe6\xbc"
    yield b"\xa2 over two writes, noncharacters \xef\xbf\xbe\xef\xbf\xbf\xef\xb7\x90 end\r\n"


@show
def text_line_drawing() -> Frames:
    yield f"{ESC}(0lqqqqqwqqqqqk\r\nx     x     x\r\ntqqqqqnqqqqqu\r\nmqqqqqvqqqqqj{ESC}(B ASCII\r\n"
    yield f"{ESC})0\x0elqk\x0f shift out and in \x0e`abcdefghijklmnopqrstuvwxyz{{|}}~_\x0f\r\n"
    yield f"{ESC}(A# pound {ESC}(B# hash {ESC}*0{ESC}nqqq{ESC}o{ESC}+0qqq\x0f\r\n"
    yield f"{ESC}(0{ESC}7{ESC}(Bplain{ESC}8qqq{ESC}(B\r\n{ESC}(0{CSI}!pqqq after a soft reset\r\n"
    yield "┌─┬─┐\r\n│ │ │\r\n├─┼─┤ and box drawing of Unicode ╔═╗║╚╝ ░▒▓█\r\n"


@show
def text_double_height() -> Frames:
    yield f"{ESC}#3Double height\r\n{ESC}#4Double height\r\n{ESC}#6Double width\r\n{ESC}#5single\r\n"


# Attributes and colours


@show
def color_bars() -> Frames:
    for hue in range(8):
        row = "".join(
            f"{CSI}48;2;{(x * 3 + hue * 20) % 256};{(255 - x * 3) % 256};{hue * 32}m{CSI}38;2;{255 - x};{x};128m▄"
            for x in range(76)
        )
        yield f"{row}{CSI}0m\r\n"


@show
def color_256() -> Frames:
    yield "".join(f"{CSI}48;5;{color}m{color:4}" + (f"{CSI}0m\r\n" if color % 16 == 15 else "") for color in range(256))
    yield (
        "".join(f"{CSI}{code}m{code} " for code in (*range(30, 40), *range(90, 98), *range(40, 50), *range(100, 108)))
        + f"{CSI}0m\r\n"
    )
    yield f"{CSI}38:5:100mcolon{CSI}38:2::10:20:30mcolon{CSI}38:2:10:20:30mold{CSI}38;2;1mcut{CSI}0;38;5mcut{CSI}38;5;300mover{CSI}0m\r\n"


@show
def attributes() -> Frames:
    names = {
        1: "bold",
        2: "dim",
        3: "italic",
        4: "underline",
        5: "blink",
        7: "inverse",
        8: "hidden",
        9: "strike",
        21: "double",
        53: "over",
    }
    for code, name in names.items():
        yield f"{CSI}{code}m{name}{CSI}0m "
    yield (
        "\r\n"
        + "".join(f"{CSI}4:{style}munderline {style}{CSI}24m " for style in range(6))
        + f"{CSI}58;5;3m{CSI}4mcolor{CSI}59;24m\r\n"
    )
    yield f"{CSI}1;2;3;4;5;7;8;9;53mall{CSI}22mnot bold{CSI}23;24;25;27;28;29;55mnone\r\n"
    yield f"{CSI};1mempty{CSI}m {CSI}1;;3mmiddle{CSI}0m {CSI}>4;2mkeys{CSI}?4mprivate{CSI}6n{CSI}999munknown{CSI}0m\r\n"
    yield f"{CSI}44m{CSI}Kblue to the end{CSI}0m\r\n{CSI}1;44m{CSI}5@{CSI}3X{CSI}2P{CSI}0m\r\n{CSI}42m\r\n{CSI}L{CSI}M{CSI}S{CSI}T{CSI}0m\r\n"


@show
def hyperlinks() -> Frames:
    yield f"{ESC}]8;;https://example.org\x07a link{ESC}]8;;\x07 and {ESC}]8;id=1;https://example.org/2{ESC}\\another{ESC}]8;;{ESC}\\\r\n"
    yield f"{ESC}]8;id=1;https://example.org/2{ESC}\\{CSI}4m{'wrapped ' * 12}{CSI}24m{ESC}]8;;{ESC}\\ end\r\n"
    yield f"{ESC}]8;;open\x07never closed\r\n{CSI}2Kerased under it{CSI}!p after a reset\r\n"


# Strings, titles, junk


@show
def titles() -> Frames:
    yield f"{ESC}]0;both\x07{ESC}]1;icon only\x07"
    yield f"{ESC}]2;window – Ünïcödé 漢字{ESC}\\text"
    yield f"{CSI}22;0t{ESC}]2;pushed\x07{CSI}22;2t{ESC}]2;twice\x07{CSI}23;2t"
    yield f"{CSI}23;0t{CSI}23;0t{CSI}23;0t"
    yield f"{ESC}]2;with;semicolons;in it\x07{ESC}]2\x07{ESC}]\x07{ESC}];\x07"
    yield f"{ESC}]2;cancelled\x18shown {ESC}]2;escaped{CSI}1mshown bold{ESC}]2;control\x01s\x0d\x0ain it\x07end"
    yield f"{ESC}]10;?\x07{ESC}]11;?{ESC}\\{ESC}]4;1;?\x07{ESC}]52;c;aGVsbG8=\x07{ESC}]1337;File=inline=1:AAAA\x07{ESC}]133;A\x07prompt"


@show
def strings() -> Frames:
    """DCS, APC, PM, SOS: nothing of them is to be seen."""
    sixel = '"1;1;40;12#0;2;0;0;0#1;2;100;100;0#1~~@@vv@@~~@@~~$#2??}}GG}}??}}??-'
    yield f"before{ESC}Pq{sixel * 20}{ESC}\\after\r\n"
    yield f"{ESC}_Gf=24,s=10,v=2,m=1;{'AAAA' * 100}{ESC}\\kitty{ESC}^private message{ESC}\\{ESC}Xstart of string{ESC}\\\r\n"
    yield f"{ESC}P$qm{ESC}\\{ESC}P$qr{ESC}\\{ESC}P+q544e{ESC}\\{ESC}P1000pcontrol mode{ESC}\\{ESC}Ptmux;{ESC}{ESC}]2;inner\x07{ESC}\\\r\n"
    yield f"cancelled {ESC}Pq~~~\x18visible {ESC}Pq~~~\x1avisible {ESC}_abc\x18visible {ESC}Pq###{CSI}1mbold{CSI}0m\r\n"
    yield f"bell in it {ESC}Pq\x07~~~{ESC}\\ {ESC}_a\x07b{ESC}\\ {ESC}^\x07{ESC}\\end\r\n"
    yield f"{ESC}P" + "1;" * 40 + f"q~{ESC}\\many {ESC}Punended at the last frame"


@show
def binary() -> Frames:
    yield bytes(range(256)) + b"\r\n" + bytes(range(128, 256)) * 3
    chance = random.Random(1)
    for _ in range(8):
        yield chance.randbytes(700)


# Cursor, margins, editing


@show
def edges() -> Frames:
    yield "x" * 80 + f"{CSI}K" + "y" + "\r\n" + "x" * 80 + "\b" + "z\r\n" + "x" * 80 + f"{CSI}Dw{ESC}7\r\n{ESC}8v"
    yield "\r\n" + "x" * 80 + "\r\nnext\r\n" + "x" * 80 + "\ttab" + "\r\n" + "x" * 80 + f"{CSI}C{CSI}Ab"
    yield f"{CSI}?7l" + "n" * 90 + f"end{CSI}?7h\r\n" + "漢" * 41 + "\r\n" + f"{CSI}?7l" + "漢" * 41 + f"{CSI}?7h\r\n"
    yield f"{CSI}4h{CSI}20Ginserted{CSI}4l{CSI}20Gover\r\n{CSI}999;999Hcorner{CSI}0;0Hhome{CSI}999Ddown{CSI}999B{CSI}999Cright"
    yield f"{CSI}H{CSI}2J{CSI}?45h\b\b\b{CSI}3;1Hab\b\b\b\bback{CSI}?45l"
    yield f"{CSI}5;79Hab{CSI}5;80Hc{CSI}6nd{CSI}10;80He{CSI}3bz{CSI}12Hq{CSI}10bq{CSI}0b{CSI}b"


@show
def margins() -> Frames:
    yield "".join(f"{CSI}{row}Hrow {row}" for row in range(1, 25))
    yield f"{CSI}5;10r{CSI}5Htop{CSI}10Hbottom\nscrolled\n\r\nagain{ESC}Mup{CSI}5H{ESC}M{ESC}Mreverse"
    yield f"{CSI}12Houtside\n\n\n\n\n\n\n\n\n\n\n\n\nnot scrolled{CSI}1H{ESC}M{ESC}Mtop"
    yield f"{CSI}7H{CSI}2Linserted{CSI}2Mdeleted{CSI}3S{CSI}2T{CSI}20H{CSI}Loutside"
    yield f"{CSI}?6h{CSI}1;1Horigin{CSI}99;1Hlast{CSI}3dthird{CSI}6n{ESC}7{CSI}?6l{CSI}1;1Hhome{ESC}8saved"
    yield f"{CSI}r{CSI}24Hfull\nscrolls{CSI}10;5rbad{CSI}0;0r{CSI}8r{CSI}24H\n\n{CSI};8r{CSI}8H\n\n{CSI}r"
    yield f"{CSI}3;3r{CSI}2;3r{CSI}3H\n\nx{CSI}99;100r{CSI}H{ESC}D{ESC}E{ESC}Ey"


@show
def editing() -> Frames:
    yield "".join(f"{CSI}{row};1H{chr(64 + row) * 80}" for row in range(1, 25))
    yield f"{CSI}3;10H{CSI}5@{CSI}4;10H{CSI}5P{CSI}5;10H{CSI}5X{CSI}6;10H{CSI}K{CSI}7;10H{CSI}1K{CSI}8;10H{CSI}2K{CSI}9;10H{CSI}3K"
    yield f"{CSI}3;10H{CSI}999@{CSI}4;10H{CSI}999P{CSI}5;10H{CSI}999X{CSI}10;80H{CSI}@{CSI}11;80H{CSI}P{CSI}12;80H{CSI}X{CSI}0@{CSI}0P"
    yield f"{CSI}20;40H{CSI}J{CSI}5;40H{CSI}1J{CSI}12;3H{CSI}?J{CSI}?K{CSI}9J{CSI}?1J"
    yield f'{CSI}2J{CSI}H{CSI}1"qprotected{CSI}0"q plain{CSI}1G{CSI}?K{CSI}?2J'
    yield f"{CSI}2;1Habcdef{CSI}2;3H{CSI}2 @{CSI}3 A{CSI}2'}}{CSI}'~x"
    yield f"{ESC}#8{CSI}10;10H{CSI}3J{CSI}2J"


@show
def tabs() -> Frames:
    yield "a\tb\tc\td\r\n\t\t\t\t\t\t\t\t\t\tend\r\n"
    yield f"{CSI}3g{CSI}5G{ESC}H{CSI}11G{ESC}H{CSI}60G{ESC}H\r\ta\tb\tc\td\r\n"
    yield f"\t\t\t{CSI}Zback{CSI}2Ztwo{CSI}99Zall\r\n{CSI}Ix{CSI}2Iy{CSI}99Iz\r\n{CSI}11G{CSI}g\r\ta\tb\tc"
    yield f"{CSI}?5W\r\ta\tb{ESC}c\ta\tb"


@show
def saved_cursors() -> Frames:
    yield f"{CSI}5;5H{CSI}1;31m{ESC}7{CSI}0m{CSI}10;10Hx{ESC}8y{CSI}s{CSI}20Hz{CSI}u!"
    yield f"{CSI}?1048h{CSI}H{CSI}?1048lq{CSI}?1049h{CSI}3;3Halt{ESC}7{CSI}9;9Hx{ESC}8a{CSI}?1049lmain{ESC}8!"
    yield f"{ESC}c{ESC}8home{CSI}5;80Hx{ESC}7\r\n{ESC}8y{CSI}u"


@show
def alternates() -> Frames:
    yield "".join(f"main {number}\r\n" for number in range(30))
    yield f"{CSI}44m{CSI}?1049h{CSI}Halt{CSI}0m"
    yield f"{CSI}?1049lback{CSI}?47halt 47{CSI}?47lback"
    yield f"{CSI}?1047h1047 \r\n\r\n{CSI}?1047l back{CSI}?1049h{CSI}?1049h twice{CSI}?1049l{CSI}?1049l once"
    yield f"{CSI}?1049h" + "".join(f"scrolled {number}\r\n" for number in range(40)) + f"{CSI}3J"
    yield f"{ESC}c{CSI}?1049h{CSI}!pstill?"
    yield f"{CSI}?1049l{CSI}?1049h{CSI}5;10r{CSI}?25l{CSI}?1h{ESC}={CSI}?2004h{CSI}?1003;1006hmodes"


@show
def resets() -> Frames:
    yield f"{CSI}?1;6;2004;1000;1004h{ESC}={CSI}4h{CSI}3;9r{CSI}1;44mtext{ESC}(0{CSI}?25l{CSI}?7l{CSI}!pafter DECSTR"
    yield f"{CSI}?1;6;2004;1000;1004h{ESC}={CSI}4h{CSI}3;9r{CSI}1;44mtext{ESC}(0{CSI}?25l{CSI}?7l{ESC}cafter RIS"
    yield f"{CSI}?1000h{CSI}?1002h{CSI}?1003h{CSI}?1002l{CSI}?9h{CSI}?1000h{CSI}?1015h{CSI}?1005h{CSI}?1016h"
    yield f"{CSI}?2026h in sync {CSI}?2026l{CSI}?2004h{CSI}?1004h{CSI}?1s{CSI}?1l{CSI}?1r{CSI}>1u{CSI}=5;1u{CSI}<u{CSI}?u{CSI}>4;1m{CSI}5 q"
    yield f"{CSI}c{CSI}>c{CSI}=c{CSI}5n{CSI}6n{CSI}?6n{CSI}?1$p{CSI}4$p{CSI}>q{CSI}18t{CSI}14t{ESC}Z end"


@show
def controls() -> Frames:
    yield f"{CSI}3\r1mcontrol in a sequence{CSI}3\n1mand a newline{CSI}\x071mbell{CSI}1\x18mcancelled{CSI}1\x1amsubstituted{ESC}{ESC}[1mtwice\r\n"
    yield f"a\vb\fc\x00d\x7fe\x05f\r\n{CSI}1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23;24;25;26;27;28;29;30;31;32;33;34mmany{CSI}0m\r\n"
    yield f"{CSI}99999999999999999999Cfar{CSI}-1Cminus{CSI}1:2Ccolon{CSI}1;2Atwo{CSI}1$Adollar{CSI}?1Aprivate{CSI}>1A{CSI}1 A{CSI}m\r\n"
    yield f"{CSI}20hnew\nline{CSI}20lmode\nend\r\n{ESC}%Gutf-8 漢{ESC}%@latin 漢{ESC}%G{ESC} Fseven{ESC} Geight{ESC}6{ESC}9{ESC}l{ESC}m\r\n"
    yield f"unfinished {CSI}38;5;"


# Sizes


def _numbered(start: int, stop: int) -> str:
    return "".join(
        f"{CSI}3{number % 8}mline {number}{CSI}0m " + "word " * (number % 23) + "\r\n" for number in range(start, stop)
    )


@show
def sizes_main() -> Frames:
    """Long lines and a scrollback; the sizes are the scenario's."""
    for start in range(0, 240, 30):
        yield _numbered(start, start + 30) + "prompt$ "


@show
def sizes_alternate() -> Frames:
    yield _numbered(0, 40)
    yield f"{CSI}?1049h{CSI}H" + "".join(f"{CSI}{row}Halt {row} " + "漢字" * row for row in range(1, 20))
    for number in range(4):
        yield f"{CSI}{number + 3};{number + 30}Hafter resize {number}{CSI}999;999H*"
    yield f"{CSI}?1049lback\r\n" + _numbered(40, 45)
    yield _numbered(45, 60)


@show
def sizes_wide() -> Frames:
    for number in range(8):
        yield (
            "漢字と" * (number + 5)
            + "👩🏽‍💻❤️e\u0301" * number
            + "\r\n"
            + "x" * (15 * number)
            + "漢" * 9
            + " " * number
            + "\r\n"
        )


@show
def scrolling() -> Frames:
    """More than the scrollback holds."""
    yield _numbered(0, 700).replace("word ", "w ")
    yield _numbered(700, 1400).replace("word ", "w ")
    yield f"{CSI}2J" + "\n" * 30 + "end"
    yield f"{CSI}3Jcleared" + "\r\n" * 40


def main() -> None:
    frames = SHOWS[sys.argv[1]]()
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    after = termios.tcgetattr(0)
    after[1] &= ~termios.OPOST
    termios.tcsetattr(0, termios.TCSANOW, after)
    for frame in frames:
        os.write(1, frame.encode() if isinstance(frame, str) else frame)
        if not os.read(0, 1):
            break
    termios.tcsetattr(0, termios.TCSADRAIN, before)


if __name__ == "__main__":
    main()
