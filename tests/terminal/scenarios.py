"""What the corpus records: programs, the keys typed into them, and the sizes that their terminal takes meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from tests.terminal.show import SHOWS
from tests.terminal.stream import Size

Step = str | Size | float  # keys, a new size, or seconds to wait; keys and sizes wait until the program is quiet

UP, DOWN, RIGHT, LEFT = (f"\x1b[{letter}" for letter in "ABCD")
PAGE_DOWN, F3, F9, F10 = "\x1b[6~", "\x1bOR", "\x1b[20~", "\x1b[21~"
TAB, ENTER, ESCAPE = "\t", "\r", "\x1b"


class Scenario(NamedTuple):
    name: str
    command: str  # for sh
    steps: tuple[Step, ...] = ()
    columns: int = 80
    rows: int = 24
    setup: str = ""  # for sh, before the recording
    environment: dict[str, str] = {}

    @property
    def how(self) -> str:
        return f"{self.command}  # {len(self.steps)} steps"


FILES = {
    "fox.py": (
        'import os\n\n\nclass Fox:\n    """Jumps."""\n\n    def jump(self, times: int = 3) -> str:\n'
        '        # over the dog\n        return f"{times} jumps" * 2\n\n\nif __name__ == "__main__":\n    print(Fox().jump(42))\n'
    ),
    "main.c": '#include <stdio.h>\n\nint main(void) {\n\tprintf("%d\\n", 42); /* so it is */\n\treturn 0;\n}\n',
    "readme.md": "# Title\n\nSome *text* with 漢字 and é.\n\n- one\n- two\n",
    "bashrc": "PS1='\\[\\e[1;32m\\]guest\\[\\e[0m\\]:\\[\\e[34m\\]\\w\\[\\e[0m\\]\\$ '\nHISTFILE=\nbind 'set bell-style none'\n",
}

GIT = """
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git config --global user.name Guest; git config --global user.email guest@example.org; git config --global init.defaultBranch main
git init -q repo; cd repo; cp ../src/* .; git add .; git commit -qm 'First: a fox'
for n in 1 2 3 4 5 6; do echo "change $n" >> notes.md; git add .; git commit -qm "Change $n: with a subject that is long enough to be cut or wrapped at eighty columns"; done
git checkout -qb side HEAD~3; echo side > side; git add .; git commit -qm 'On the side, ünïcödé 漢字'
git checkout -q main; git merge -q --no-edit side; git tag v1.0
sed -i 's/42/43/; s/dog/cat/' fox.py main.c; echo untracked > new
cd ..
"""

VIM = "vim -u NONE -N -i NONE -c 'set nocp ruler showcmd noswapfile"
TMUX = "tmux -L record -f /dev/null new-session -s main 'exec bash --rcfile bashrc'"
BASH = "bash --rcfile bashrc"
C_B = "\x02"

# fmt: off
EDITORS = (
    Scenario("vim-edit", f"{VIM}' new.txt", ("ihello world", ENTER, "second line", ESCAPE, "yy", "5p", "u", "u", "ggdw", ":w\r", ":q\r")),
    Scenario("vim-syntax", f"{VIM} nu hls' -c 'syntax on' src/fox.py", ("/jump\r", "n", "n", "Gzt", ":set list\r", ":set background=dark\r", "gg=G")),
    Scenario("vim-split", f"{VIM} nu' -c 'syntax on' long.txt", (":vsplit src/main.c\r", ":split docs/readme.md\r", "\x17l", "\x06", "\x17=", ":new\r", "\x17_", ":q\r", ":only\r"), 100, 30),
    Scenario("vim-visual", f"{VIM} nu' long.txt", ("10jv4j", "e", "\x16", "3l", "d", "V3j>", ".", "ggVGU", ":%s/fox/漢字/g\r")),
    Scenario("vim-resize", f"{VIM} nu wrap' -c 'syntax on' wide.txt", ("G", (60, 18), (120, 40), "gg", (30, 10), "\x04", ":set nowrap\r", (80, 24), ":q\r")),
    Scenario("vim-exit", f"sh -c \"seq 40; {VIM}' long.txt; echo back\"", ("\x06", "\x06", "\x15", "dd", ":q!\r")),
    Scenario("vim-help", f"{VIM}' -c 'syntax on'", (":help\r", "\x06", "/motion\r", ":set spell\r", ":reg\r", ENTER, ":qa\r"), 90, 28),
    Scenario("vim-mouse", f"{VIM} mouse=a ttymouse=sgr title' -c 'syntax on' src/main.c", ("\x1b[<0;20;4M\x1b[<0;20;4m", "\x1b[<65;5;5M", "ix", ESCAPE, ":set mouse=\r")),
    Scenario("vim-terminal", f"{VIM}'", (":term seq 5\r", "\x17N", ":set cursorline nu\r", ":ls\r"), 80, 24),
    Scenario("nvim-edit", "nvim --clean -c 'set termguicolors number cursorline' src/fox.py", ("ohello", ESCAPE, "/jump\r", ":vsplit\r", "v5j", ESCAPE, ":set list\r", ":colorscheme habamax\r")),
    Scenario("nvim-resize-exit", "sh -c \"seq 30; nvim --clean long.txt; echo back\"", ("\x06", (60, 20), "\x06", (100, 30), ":split\r", ":qa\r")),
    Scenario("nano-edit", "nano new.txt", ("hello 漢字 world", ENTER, "second", UP, "\x0b", "\x15", "\x15", "\x17", "wor\r", "\x18", "n")),
    Scenario("nano-syntax-resize", "nano -l -Y python src/fox.py", (PAGE_DOWN, (60, 15), DOWN, (100, 30), "\x07", PAGE_DOWN, "\x18", "\x18")),
)

PAGERS = (
    Scenario("less-search", "less -N long.txt", ("/fox\r", "n", "G", "b", "?line 1\r", "g", "100g", "&9\r", "q")),
    Scenario("less-long-lines", "less -S wide.txt", (" ", RIGHT, RIGHT, LEFT, "-S", ENTER, (40, 12), " ", "G")),
    Scenario("less-color", "sh -c 'ls --color=always -l /etc | less -R'", (" ", " ", (50, 20), "b", "/conf\r")),
    Scenario("less-unicode", "sh -c 'python3 show.py text-cjk < /dev/tty | less'", ("k", "k", "k", "k", "k", "k", DOWN, DOWN, DOWN)),
    Scenario("less-exit", "sh -c 'seq 50; less long.txt; less -X long.txt; echo back'", (" ", "q", " ", "q")),
    Scenario("less-binary", "less -f /bin/true", (" ", " ", "G")),
    Scenario("more", "more long.txt", (" ", " ", ENTER, "/150\r", "q")),
    Scenario("man-ls", "man ls", (" ", "/--color\r", "n", (60, 20), "h", "q", "q"), environment={"MANPAGER": "less"}),
    Scenario("man-wide", "man bash", (" ", PAGE_DOWN, "G", "?FILES\r"), 132, 43),
    Scenario("bat", "batcat --paging=never --color=always --decorations=always src/fox.py src/main.c docs/readme.md"),
    Scenario("w3m", "w3m page.html", (TAB, TAB, " ", (60, 18), "B", "q"), setup="echo '<h1>Title</h1><p>Some <b>bold</b> <a href=x>link</a> 漢字<table border><tr><td>a<td>b<tr><td colspan=2>c</table><ul><li>one<li>two</ul><input type=text>' > page.html\n"),
)

MONITORS = (
    Scenario("htop", "htop -d 10", ("t", DOWN, DOWN, "F", "/sh", ESCAPE, 1.5, "h", ESCAPE), setup="sleep 100 & sleep 200 & sh -c 'sleep 300; true' &\n"),
    Scenario("htop-setup-resize", "htop -d 10", ("\x1bOQ", DOWN, RIGHT, DOWN, ESCAPE, (60, 15), 1.5, (110, 35), "q")),
    Scenario("top", "top -d 1", (1.5, "z", "x", "1", "V", "c", 1.5), setup="sleep 100 & sleep 200 &\n"),
    Scenario("top-resize", "sh -c 'seq 30; top -d 1; echo back'", ((60, 18), 1.2, (100, 30), 1.2, "h", ESCAPE, "q")),
    Scenario("watch-diff", "watch -n 1 -d date -u", (2.5, (50, 12), 1.5)),
    Scenario("watch-color", "watch -n 1 -c -t 'ls -l --color=always; echo 漢字'", (1.5, (60, 16), 1.5)),
    Scenario("ncdu", "ncdu --color dark /etc/apt", (DOWN, ENTER, "i", "i", "?", "q", "q")),
    Scenario("cmatrix", "cmatrix -b -u 9", (0.4, (40, 12), 0.3)),
    Scenario("sl", "sl -e", (4.0,)),
)

TMUX_STYLE = "tmux -L record set -g status-right right \\; set -g status-style bg=colour4,fg=white"
TMUX_RUNS = (
    Scenario("tmux-panes", TMUX, (C_B + "%", C_B + '"', "ls -la --color\r", C_B + "o", "seq 30\r", C_B + "z", C_B + "z", C_B + " ", C_B + "x", "y"), 100, 30),
    Scenario("tmux-resize", TMUX, (TMUX_STYLE + "\r", C_B + '"', "seq 50\r", (60, 20), C_B + "%", (120, 36), "cat wide.txt\r", (80, 24), C_B + "!")),
    Scenario("tmux-copy-mode", TMUX, ("seq 200\r", C_B + "[", "\x1b[5~", "\x1b[5~", "\x00", UP, UP, "\x17", C_B + "]", C_B + "?", "q")),
    Scenario("tmux-vim", TMUX, (f"{VIM} nu' src/fox.py\r", C_B + "%", "htop -d 50\r", C_B + LEFT, "ihello", ESCAPE, C_B + "c", C_B + "w", "q"), 120, 30),
    Scenario("tmux-unicode", TMUX, (C_B + "%", "python3 show.py text-emoji\r", "     ", "python3 show.py text-cjk\r", "      ", C_B + "o", "python3 show.py text-combining\r", "     ")),
    Scenario("tmux-detach", f'sh -c "seq 30; {TMUX}; echo back"', ("ls\r", C_B + ",", "name\r", C_B + "t", "q", C_B + "d")),
    Scenario("tmux-256color", TMUX, ("python3 show.py color-bars\r", "k" * 10, "python3 show.py attributes\r", "k" * 20), environment={"COLORTERM": "truecolor"}),
)

GIT_RUNS = (
    Scenario("git-log-color", "git -C repo log --color", (" ", " ", "q"), setup=GIT, environment={"GIT_PAGER": "less -R"}),
    Scenario("git-log-graph", "git -C repo --no-pager log --color --graph --decorate --stat", setup=GIT),
    Scenario("git-log-oneline", "git -C repo --no-pager log --color --oneline --graph --all", setup=GIT, columns=50, rows=12),
    Scenario("git-diff", "git -C repo diff --color", (" ", "q"), setup=GIT, environment={"GIT_PAGER": "less -RFX"}),
    Scenario("git-word-diff", "sh -c 'cd repo; git --no-pager diff --color-words; git status; git blame --color-by-age fox.py | cat'", setup=GIT),
    Scenario("git-add-p", "git -C repo add -p", ("?\r", "s\r", "y\r", "n\r", "q\r"), setup=GIT),
    Scenario("tig", "tig -C repo", (DOWN, ENTER, DOWN, "d", "h", "q", "q", (60, 20), "q"), setup=GIT),
)

SHELLS = (
    Scenario("ls-color", "ls -la --color=always . src /usr/share/zoneinfo"),
    Scenario("ls-columns", "ls --color=always -FC /usr/share/zoneinfo /usr/share/zoneinfo/America", columns=100, rows=30),
    Scenario("grep-color", "grep -rn --color=always fox src long.txt"),
    Scenario("bash-completion", BASH, ("ls sr\t\r", "cat l\t\t", "ong.txt | head\r", "cd d\t\r", "cd -\r", "echo $HO\t\t\r")),
    Scenario("bash-editing", BASH, ("echo one two three", "\x01", "\x1bf", "\x1bd", "\x19", "\x05", ENTER, UP, "\x1b.", "\x17", "\x15", "\x12", "one", ENTER)),
    Scenario("bash-wrap", BASH, ("echo " + "long words " * 14, "\x01", "x", "\x05", "\x1bb\x1bb", "漢字", (50, 20), "\x05", ENTER, "echo " + "y" * 43, "z", LEFT, ENTER), 60, 20),
    Scenario("bash-vi-multiline", BASH, ("set -o vi\r", "for i in 1 2 3; do\r", "echo $i\r", "done\r", UP, ESCAPE, "0", "w", "cwj", ENTER)),
    Scenario("bash-resize", BASH, ("ls -l\r", (40, 10), "ls -l\r", (100, 30), "clear\r", "seq 60\r", (60, 14), (60, 40), "\x0c", "exit\r")),
    Scenario("bash-colors-reset", BASH, ("printf '\\033[31;7mred'\r", "tput setaf 2; tput rev; echo x; tput sgr0\r", "tput smcup; echo alt\r", "tput rmcup; reset\r", 1.5, "tput civis; tput cnorm; tput el1\r")),
    Scenario("fish-start", "fish --private", ("ls --co", TAB, ESCAPE, "\x03", "echo 'hi'\r", "ec", RIGHT, ENTER, "cd ", TAB, TAB, RIGHT, ENTER), setup="mkdir -p .config/fish\n"),
    Scenario("fish-wrap-resize", "fish --private", ("echo " + "word " * 20, (50, 16), "\x01", "x", ENTER, "seq 20\r", (100, 30), "for i in 1 2\r", "echo $i\r", "end\r", UP)),
    Scenario("zsh-complete", "zsh -f", ("autoload -U compinit; compinit -D -u; zstyle ':completion:*' menu select\r", "PROMPT='%F{green}%n%f %~ %# ' RPROMPT='[%?]'\r", "ls ", TAB, TAB, TAB, ENTER, ENTER, "cd ", TAB, "\x03")),
    Scenario("zsh-wrap", "zsh -f", ("RPROMPT='right'; PROMPT_EOL_MARK='%%'\r", "printf no-newline\r", "echo " + "word " * 20, (50, 16), "\x01", "y", "\x05", ENTER, "echo 'a\rb'\r")),
    Scenario("dash", "sh -i", ("ls -C\r", "cat > x\r", "typed\r", "\x04", "cat x\r", "stty -echo\r", "echo hidden\r", "\x04")),
    Scenario("fzf", "sh -c 'cat long.txt | fzf --multi --preview \"head -5 src/fox.py\"'", ("9 fox", TAB, UP, UP, TAB, (60, 18), "\x15", ENTER)),
    Scenario("readline-menu", "bash --norc -c 'select x in one two three four; do echo got $x; done'", ("2\r", "9\r", "\r", "\x04")),
)

REPLS = (
    Scenario("python-repl", "python3 -q", ("1+1\r", "def f(x):\r", "    return x*2\r", "\r", "f(", "21)\r", "import os; os.get", TAB, TAB, "cwd()\r", "1/0\r", UP, "\x01", "print(", "\x05", ")\r", "'漢字' * 30\r", "exit()\r")),
    Scenario("python-help", "python3 -q", ("help(str.split)\r", "q", "help(str)\r", " ", "/find\r", "q"), environment={"PAGER": "less"}),
    Scenario("python-pdb", "python3 -m pdb src/fox.py", ("n\r", "n\r", "l\r", "b 9\r", "c\r", "w\r", "p times\r", "q\r")),
    Scenario("node-repl", "node", ("1+1\r", "[1,2,3].ma", TAB, "p(x => x*2)\r", "({a: 1, b: 'x', c: null})\r", "'漢字'\r", "const f = (\r", "x) => x\r", UP, "\x01", ".exit\r"), environment={"NODE_REPL_HISTORY": ""}),
    Scenario("jq-color", "sh -c 'echo \"{\\\"a\\\": [1, null, true, {\\\"b\\\": \\\"漢字\\\"}], \\\"c\\\": \\\"x\\\"}\" | jq -C .'"),
)

MC_SETUP = "mkdir -p .config/mc; printf '[Midnight-Commander]\\nskin=default\\n' > .config/mc/ini\n"
CURSES = (
    Scenario("mc", "mc -d", (DOWN, DOWN, TAB, DOWN, "\x1b9", RIGHT, DOWN, ESCAPE + ESCAPE, "\x0f", "\x0f", F10), setup=MC_SETUP),
    Scenario("mc-view", "mc -v src/main.c", (F9, DOWN, (100, 30), "\x1b4", DOWN, F10), setup=MC_SETUP),
    Scenario("mc-edit-resize", "mcedit src/fox.py", ("x", DOWN, F3, DOWN, DOWN, (60, 18), F9, RIGHT, (100, 30), ESCAPE + ESCAPE), setup=MC_SETUP),
    Scenario("mc-mouse", "mc", ("\x1b[<0;10;5M\x1b[<0;10;5m", "\x1b[<0;5;1M\x1b[<0;5;1m", ESCAPE + ESCAPE, "ls\r"), 120, 40, setup=MC_SETUP),
    Scenario("dialog-menu", "dialog --title 'A menu' --colors --menu '\\Zb\\Z1Choose\\Zn one' 15 50 5 1 First 2 Second 3 漢字 4 Fourth", (DOWN, DOWN, TAB, TAB, ENTER)),
    Scenario("dialog-gauge", "sh -c 'for n in 0 20 40 60 80 100; do echo $n; sleep .2; done | dialog --gauge Working 8 50'", (2.0,)),
    Scenario("dialog-form", "dialog --form Fields 14 50 4 Name: 1 1 '' 1 10 20 0 City: 2 1 X 2 10 20 0 --and-widget --checklist Pick 12 40 4 a A on b B off c C off", ("Guest", TAB, TAB, ENTER, " ", DOWN, " ", (60, 18), ENTER)),
    Scenario("dialog-calendar", "dialog --calendar Day 0 0 24 12 2024", (RIGHT, DOWN, TAB, ENTER)),
    Scenario("whiptail-menu", "whiptail --title Title --menu Choose 15 50 5 a Alpha b Beta c Gamma", (DOWN, TAB, TAB, ENTER)),
    Scenario("whiptail-gauge", "sh -c 'for n in 0 30 60 90; do echo $n; sleep .2; done | whiptail --gauge Working 8 50 0; whiptail --yesno Sure? 8 30'", (1.5, TAB, ENTER)),
    Scenario("curl-progress", "sh -c 'curl -# -o /dev/null file:///usr/bin/git; curl -o /dev/null file:///usr/bin/git'"),
    Scenario("dd-progress", "dd if=/dev/zero of=/dev/null bs=1M count=400000 status=progress", (2.2,)),
    Scenario("binary-cat", "head -c 30000 /bin/ls"),
    Scenario("binary-random", "sh -c 'stty raw; python3 -c \"import random; print(random.Random(7).randbytes(40000).decode(\\\"latin-1\\\"))\"'", environment={"PYTHONIOENCODING": "latin-1"}),
)

DA1 = "\x1b[?1;2c"  # it asks before anything else
VTTEST = (
    Scenario("vttest-cursor", "vttest", (DA1, "1\r", *["\r"] * 8)),
    Scenario("vttest-screen", "vttest", (DA1, "2\r", *["\r"] * 18)),
    Scenario("vttest-charsets", "vttest", (DA1, "3\r", "8\r", *["\r"] * 5, "10\r", *["\r"] * 3)),
    Scenario("vttest-double", "vttest", (DA1, "4\r", *["\r"] * 6)),
    Scenario("vttest-vt102", "vttest", (DA1, "8\r", *["\r"] * 15)),
    Scenario("vttest-colors", "vttest", (DA1, "11\r", "6\r", "2\r", *["\r"] * 3, "3\r", *["\r"] * 3, "4\r", *["\r"] * 4, "5\r", *["\r"] * 3)),
    Scenario("vttest-ecma", "vttest", (DA1, "11\r", "5\r", *[key for number in range(2, 8) for key in (f"{number}\r", "\r", "\r")])),
    Scenario("vttest-xterm-alternate", "vttest", (DA1, "11\r", "8\r", "7\r", "2\r", "\r", "\r", "3\r", "\r", "\r", "4\r", "\r", "\r")),
    Scenario("vttest-vt420", "vttest", (DA1, "11\r", "3\r", "3\r", *["\r"] * 8, "2\r", *["\r"] * 4)),
)

# fmt: on

# The sizes are taken between the frames of a show.
SIZES: dict[str, tuple[Step, ...]] = {
    "sizes-main": (
        (60, 24),
        " ",
        (120, 30),
        " ",
        (20, 10),
        " ",
        (80, 40),
        " ",
        (80, 5),
        " ",
        (33, 24),
        " ",
        (200, 24),
        " ",
    ),
    "sizes-alternate": (" ", (60, 24), " ", (100, 30), " ", (30, 10), " ", (80, 24), " ", (40, 12), " ", " "),
    "sizes-wide": (" ", (40, 24), " ", (41, 24), " ", (79, 10), " ", (20, 30), " ", (5, 24), " ", (80, 24), " "),
    "scrolling": (" ", (70, 20), " ", (90, 30), " ", " "),
}
SHOW_RUNS = tuple(Scenario(name, f"python3 show.py {name}", SIZES.get(name, (" ",) * 60)) for name in SHOWS)

SCENARIOS: tuple[Scenario, ...] = (
    *EDITORS, *PAGERS, *MONITORS, *TMUX_RUNS, *GIT_RUNS, *SHELLS, *REPLS, *CURSES, *VTTEST, *SHOW_RUNS,
)  # fmt: skip
