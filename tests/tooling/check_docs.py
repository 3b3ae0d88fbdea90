"""Checks that what pages name exists: files, options, settings and what links lead to.

usage: check_docs.py --program PATH/moelab [FILE …]

Run it from the root of the repository; without files it takes all pages and configs. In a page's code (blocks and
`spans`), and in the comments of a YAML file that are indented as commands, it looks at
- paths that begin with a folder of this repository: they exist, unless NAME in them stands for a name;
- options (--name) of `moelab COMMAND`, of bench_tradeoff beside it and of scripts: their --help, or the script's text,
  has them;
  an option that stands alone in a span belongs to any of these;
- settings (group.key): `moelab train --help all` has them.
Links to files lead to files that exist, seen from the page's folder, and to a heading of theirs after a #.
"""
import argparse
import functools
import pathlib
import re
import subprocess
import sys

COMMANDS = ("train", "eval", "estimate", "plan", "fits", "generate", "chat", "qualify", "techniques", "import", "export", "completion")
GROUPS = ("model", "attention", "precision", "activations", "optim", "placement", "parallel", "train", "eval",
          "reference", "data", "memory", "sample", "monitor", "checkpoint", "run")
FOLDERS = ("kernels", "moe", "train", "bench", "results", "scripts", "tests", "cmake", "docs", "configs", ".ci")

PAGES = ("*.md", "docs/**/*.md", "configs/*.yaml")

BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
COMMENTED = re.compile(r"^#   +(\S.*)$", re.MULTILINE)  # a command in the comments of a YAML file
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SETTING = re.compile(rf"(?<![\w./-])((?:{'|'.join(GROUPS)})\.[a-z_0-9]+(?:\.[a-z_]+)?)\b(?!\.|/|\()")
SOURCE_SUFFIX = re.compile(r"\.(py|sh|h|cpp|cu|md|json|jsonl|yaml|txt|bin|log)$")
PATH = re.compile(rf"(?<![\w/.-])(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*\w)")
PROGRAM = re.compile(r"(?:^|[\s/])moelab\s+(\w+)(?![\w/])")  # and no path behind it, which is an argument of its caller
TRADEOFF = re.compile(r"(?:^|[\s/])bench_tradeoff\b")
SCRIPT = re.compile(r"(?:^|[\s/])((?:scripts|bench)/[\w./-]+\.(?:py|sh))")


class Facts:
    """What exists: asked of the program, the scripts and the tree, once each."""

    def __init__(self, program: str, root: pathlib.Path = pathlib.Path()):
        self.root, self.program, self.helps = root, program, {}

    def help(self, command: str) -> str | None:
        """A command's options and settings; None when there is no such command."""
        if command not in self.helps:
            self.helps[command] = self.output([self.program, command, "--help", "all"])
        return self.helps[command]

    @functools.cached_property
    def tradeoff_help(self) -> str:
        return self.output([pathlib.Path(self.program).with_name("bench_tradeoff"), "--help"]) or ""

    @staticmethod
    def output(command: list) -> str | None:
        """What a command prints; None where it fails."""
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def script(self, path: str) -> str:
        file = self.root / path
        return file.read_text() if file.is_file() else ""

    def anywhere(self, option: str) -> bool:
        texts = [self.tradeoff_help] + [self.help(command) or "" for command in COMMANDS]
        texts += [file.read_text() for file in (self.root / "scripts").glob("*.*") if file.is_file()]
        return any(has_word(text, option) for text in texts)


def has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def check_line(line: str, facts: Facts) -> list[str]:
    """Complaints about one command line or code span."""
    complaints = []
    for path in PATH.findall(line):
        if "NAME" not in path and not (facts.root / path).exists():
            complaints.append(f"{path} does not exist")
    for name in SETTING.findall(line):
        if not SOURCE_SUFFIX.search(name) and not has_word(facts.help("train") or "", name):
            complaints.append(f"{name} is no setting of moelab train")
    return complaints + check_options(line, facts)


def unknown(options: list[str], whose: str, text: str) -> list[str]:
    return [f"{whose} has no option {name}" for name in options if not has_word(text, name)]


def check_options(line: str, facts: Facts) -> list[str]:
    options = OPTION.findall(line)
    command, script, tradeoff = PROGRAM.search(line), SCRIPT.search(line), TRADEOFF.search(line)
    if command and facts.help(command[1]) is None:
        return [f"moelab has no command {command[1]}"]
    if command:
        own = OPTION.findall(line[command.start():])  # those before it are torchrun's, env's …
        return unknown(own, f"moelab {command[1]}", facts.help(command[1]))
    if script:
        return unknown(options, script[1], facts.script(script[1]))
    if tradeoff:
        return unknown(OPTION.findall(line[tradeoff.start():]), "bench_tradeoff", facts.tradeoff_help)
    if line.lstrip().startswith("--"):
        return [f"nothing here has an option {name}" for name in options if not facts.anywhere(name)]
    return []  # another program's


def code_lines(text: str) -> list[str]:
    """Command lines of blocks (continued ones joined, comments dropped), and spans."""
    lines = []
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            lines.append(re.sub(r"(^|\s)#.*", "", line))
    paragraphs = re.split(r"\n\s*\n", BLOCK.sub("", text))
    return lines + [span for paragraph in paragraphs for span in SPAN.findall(paragraph.replace("\n", " "))]


def anchors(page: str) -> set[str]:
    """What the headings of a page are called behind a #."""
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(BLOCK.sub("", page))]
    return {word.replace(" ", "-") for word in words}


def check_links(file: pathlib.Path, text: str) -> list[str]:
    complaints = []
    for target, anchor in LINK.findall(BLOCK.sub("", text)):
        there = file.parent / target if target else file
        if not there.exists():
            complaints.append(f"link to {target}, which does not exist")
        elif anchor and anchor not in anchors(there.read_text()):
            complaints.append(f"link to {target}#{anchor}, where there is no such heading")
    return complaints


def check(file: pathlib.Path, facts: Facts) -> list[str]:
    text = file.read_text()
    markdown = file.suffix == ".md"
    lines = code_lines(text) if markdown else COMMENTED.findall(text)
    complaints = [complaint for line in lines for complaint in check_line(line, facts)]
    return sorted({*complaints, *(check_links(file, text) if markdown else [])})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    facts = Facts(arguments.program)
    files = arguments.files or [file for pattern in PAGES for file in sorted(facts.root.glob(pattern))]
    complaints = [f"{file}: {complaint}" for file in files for complaint in check(file, facts)]
    print("\n".join(complaints) or f"{len(files)} files: every file, option, setting and heading that is named exists")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
