"""Checks that what a Markdown file names exists: files, options and settings.

usage: check_docs.py --program PATH/moelab README.md

In code (blocks and `spans`) it looks at
- paths that begin with a folder of this repository, and local links: they exist;
- options (--name) of `moelab COMMAND` and of scripts: that command's --help, or the script's text, has them;
  an option that stands alone in a span belongs to any of these;
- settings (group.key): `moelab train --help` has them.
"""
import argparse
import pathlib
import re
import subprocess
import sys

COMMANDS = ("train", "eval", "estimate", "plan", "generate", "techniques", "import", "export")
GROUPS = ("model", "attention", "precision", "activations", "optim", "placement", "parallel", "train", "eval",
          "reference", "data", "memory", "sample", "monitor", "checkpoint", "run")
FOLDERS = ("kernels", "moe", "train", "bench", "results", "scripts", "tests", "cmake", "docs", ".ci")

BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SETTING = re.compile(rf"(?<![\w./-])((?:{'|'.join(GROUPS)})\.[a-z_0-9]+(?:\.[a-z_]+)?)\b(?!\.|/|\()")
SOURCE_SUFFIX = re.compile(r"\.(py|sh|h|cpp|cu|md|json|jsonl|yaml|txt|bin|log)$")
PATH = re.compile(rf"(?<![\w/.-])(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*\w)")
PROGRAM = re.compile(r"(?:^|[\s/])moelab\s+(\w+)")
SCRIPT = re.compile(r"(?:^|[\s/])(scripts/[\w./-]+\.(?:py|sh))")


class Facts:
    """What exists: asked of the program, the scripts and the tree, once each."""

    def __init__(self, program: str, root: pathlib.Path = pathlib.Path(".")):
        self.root, self.program, self.helps = root, program, {}

    def help(self, command: str) -> str | None:
        """A command's --help; None when there is no such command."""
        if command not in self.helps:
            done = subprocess.run([self.program, command, "--help"], capture_output=True, text=True)
            self.helps[command] = done.stdout if done.returncode == 0 else None
        return self.helps[command]

    def script(self, path: str) -> str:
        file = self.root / path
        return file.read_text() if file.is_file() else ""

    def anywhere(self, option: str) -> bool:
        texts = [self.help(command) or "" for command in COMMANDS]
        texts += [file.read_text() for file in (self.root / "scripts").glob("*.*") if file.is_file()]
        return any(has_word(text, option) for text in texts)


def has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def check_line(line: str, facts: Facts) -> list[str]:
    """Complaints about one command line or code span."""
    complaints = []
    for path in PATH.findall(line):
        if not (facts.root / path).exists():
            complaints.append(f"{path} does not exist")
    for name in SETTING.findall(line):
        if not SOURCE_SUFFIX.search(name) and not has_word(facts.help("train") or "", name):
            complaints.append(f"{name} is no setting of moelab train")
    return complaints + check_options(line, facts)


def unknown(options: list[str], whose: str, text: str) -> list[str]:
    return [f"{whose} has no option {name}" for name in options if not has_word(text, name)]


def check_options(line: str, facts: Facts) -> list[str]:
    options = OPTION.findall(line)
    command, script = PROGRAM.search(line), SCRIPT.search(line)
    if command and facts.help(command[1]) is None:
        return [f"moelab has no command {command[1]}"]
    if command:
        own = OPTION.findall(line[command.start():])  # those before it are torchrun's, env's …
        return unknown(own, f"moelab {command[1]}", facts.help(command[1]))
    if script:
        return unknown(options, script[1], facts.script(script[1]))
    if line.lstrip().startswith("--"):
        return [f"nothing here has an option {name}" for name in options if not facts.anywhere(name)]
    return []  # another program's


def code_lines(text: str) -> list[str]:
    """Command lines of blocks (continued ones joined, comments dropped), and spans."""
    lines = []
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            lines.append(re.sub(r"(^|\s)#.*", "", line))
    return lines + SPAN.findall(BLOCK.sub("", text))


def check(text: str, facts: Facts) -> list[str]:
    complaints = [complaint for line in code_lines(text) for complaint in check_line(line, facts)]
    for target in LINK.findall(text):
        if not (facts.root / target).exists():
            complaints.append(f"link to {target}, which does not exist")
    return sorted(set(complaints))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    facts = Facts(arguments.program)
    complaints = [f"{file}: {complaint}" for file in arguments.files
                  for complaint in check(file.read_text(), facts)]
    print("\n".join(complaints) or "every file, option and setting that is named exists")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
