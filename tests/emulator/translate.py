#!/usr/bin/env python3
"""Turns a .cu file into C++ for the host's compiler, with tests/emulator/device_language.h in front.

Three things of CUDA are no C++: `kernel<<<grid, block, shared, stream>>>(arguments)`, which becomes a call of
moelab::emulator::launch; `__shared__`: `extern __shared__ T name[]`, also with `__align__(n)`, becomes a pointer, and any other such variable a
reference to a block's memory; and an instruction of PTX in `asm volatile`, which becomes a call of a function of that name
(ptx.h) with the operands in the order of the instruction. Headers (.cuh) are translated like files.

example: tests/emulator/translate.py kernels/attention/rope.cu rope.cpp
"""
import re
import sys
from pathlib import Path


def end_of_group(text, begin):
    """The index behind the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
    raise ValueError("a bracket is not closed")


def begin_of_kernel(text, end):
    """The index of the first letter of `name` or `name<arguments>` that ends at `end`."""
    i = end
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += {">": 1, "<": -1}.get(text[i], 0)
            if depth == 0:
                break
    return i - len(re.search(r"[\w:]*$", text[:i]).group())


def shared_variables(declaration):
    """`__shared__ T a[N], b;` as references."""
    kind, names = declaration.groups()
    return " ".join(f"static moelab::emulator::SharedPlace place_of_{name}; "
                    f"auto& {name} = moelab::emulator::shared_variable<{kind}{size}>(place_of_{name});"
                    for name, size in re.findall(r"(\w+)\s*((?:\[[^]]*\])*)\s*(?:,|$)", names))


def instruction(statement):
    """The inside of `asm volatile(...)` as a call: `"a.b {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(z)` as ptx::a_b(x, y, z)."""
    text = re.match(r'(?:\s*"[^"]*")+', statement)
    operation, operands = "".join(re.findall(r'"([^"]*)"', text[0])).strip().rstrip(";").partition(" ")[::2]
    rest, values = statement[text.end():], []
    while (constraint := re.search(r'"[=+]?\w"\(', rest)) is not None:
        end = end_of_group(rest, constraint.end() - 1)
        values.append(rest[constraint.end():end - 1])
        rest = rest[end:]
    given = re.sub(r"%(\d+)", lambda number: values[int(number[1])], re.sub(r"[\[\]{}]", "", operands))
    return f"moelab::emulator::ptx::{re.sub(r'[.:]+', '_', operation)}({given})"


def translated(text):
    while (assembly := re.search(r"asm volatile\(", text)) is not None:
        end = end_of_group(text, assembly.end() - 1)
        text = text[:assembly.start()] + instruction(text[assembly.end():end - 1]) + text[end:]
    text = re.sub(r"extern\s+__shared__\s+(?:__align__\((\d+)\)\s+)?([\w:]+)\s+(\w+)\[\];",
                  lambda name: f"{name[2]}* const {name[3]} = "
                               f"static_cast<{name[2]}*>(moelab::emulator::dynamic_shared({name[1] or 16}));", text)
    text = re.sub(r"__shared__\s+([\w:]+)\s+([^;]+);", shared_variables, text)
    while (launch := re.search(r"\s*<<<", text)) is not None:
        begin = begin_of_kernel(text, launch.start())
        closing = text.index(">>>(", launch.end())
        end = end_of_group(text, closing + 3)
        kernel, configuration = text[begin:launch.start()], text[launch.end():closing]
        arguments = text[closing + 4:end - 1].strip()
        call = (f"moelab::emulator::launch({configuration}, [=](const auto&... simt) {{ {kernel}(simt...); }}"
                f"{', ' if arguments else ''}{arguments})")
        text = text[:begin] + call + text[end:]
    return text


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    target.write_text(f'#include "tests/emulator/device_language.h"\n#line 1 "{source}"\n'
                      + translated(source.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
