#!/usr/bin/env python3
"""Measures the shape of the tree and asserts its limits (CONTRIBUTING.md): lengths of functions and files, sizes of classes and
folders, include circles between modules, wide lines, sources listed by hand, words of the old vocabulary.

    shape.py          prints the figures and every violation; exit code 1 if there is one
    shape.py --all    lists the longest functions and the largest classes, too

C++ is read by a small tokenizer: comments and strings are dropped, braces are matched, a block at namespace or class level that follows
a parameter list is a function. Lambdas count as a part of their function."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
P99_FUNCTION, LONGEST_FUNCTION, LONGEST_FILE, LARGEST_FOLDER, WIDEST_LINE = 45, 100, 500, 70, 110
MOST_MEMBERS, MOST_METHODS = 25, 40

# Functions above LONGEST_FUNCTION: tables and kernels only. {name: reason}
LONG_FUNCTIONS = {
    "backward_kernel": "one CUDA kernel: the rows, their sums and the block's part share registers and shared memory",
}
# Classes above the limits: at most five, each with its reason. Records of options have no methods and are not classes in this sense.
LARGE_CLASSES = {
    "ModelSpec": "the record of a model's shape, one field per dimension or property; its methods only derive values",
    "StepCompiler": "one walk over the slots of a stage; what earlier slots left (buffers, groups, waits) is read by all its parts",
    "Engine": "owns everything that one rank executes with; its parts (crossings, state exchange, versions, graphs) are classes already",
}
MOST_LARGE_CLASSES = 5

BANNED = re.compile(
    r"\b(comings|PlanWish|whoever|nobody|somebody|everybody|patience|pulses?|teller|beacon|"
    r"comers?|quicker|quickest|as quick|anew|by itself|is away|are away|is over|goes on|go on|went on|behind step|gone back|"
    r"buddies|muster|specimens?|salvage|regroup\w*|suspicion|hand over|reckons?|mends?|mended)\b",
    re.IGNORECASE,
)
BANNED_NAMES = re.compile(r"\b(Comer|Company|Deciding|Regrouping)\b")
# Where a word of the list is right: {path: words}. The glossary and the changelog list old words; old spellings are still read.
ALLOWED = {"docs/glossary.md": None, "CHANGELOG.md": None, "tests/structure/shape.py": None, "cli/status.cpp": "patience",
           "src/settings/options.cpp": "patience", "src/policy/situation.cpp": "anew", "tests/report/recorded_trial_test.cpp": "anew", "docs/results/learned-policy.md": "anew"}


def tracked(*patterns):
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "-co", "--exclude-standard", "--", *patterns], capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path and (ROOT / path).exists()]


def strip(text):
    """Without comments and strings; lines stay where they are."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group()) if match.group().startswith("/") else '""' + "\n" * match.group().count("\n")

    pattern = r'//[^\n]*|/\*.*?\*/|(?:u8|u|U|L)?R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
    text = re.sub(pattern, blank, text, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group().count("\n"), text, flags=re.MULTILINE)


class Block:
    def __init__(self, kind, name, line):
        self.kind, self.name, self.line = kind, name, line
        self.members, self.methods = 0, 0


HEAD_OF_CLASS = re.compile(r"\b(class|struct|union)\s+(?:\[\[\w+\]\]\s*)?((?:\w+::)*\w+)(?:<[^{};]*>)?\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)
FUNCTION_END = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|&|&&|->\s*[\w:<>,\s*&]+|requires[^{]*|\s)*$")
OPERATOR = re.compile(r"operator\s*(?:\(\)|\[\]|[^\s\w(]+|\w+)\s*\(")


def name_of_function(head):
    found = OPERATOR.search(head)
    if found:
        return found.group().rstrip("( ")
    head = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", head)
    found = re.search(r"(~?[\w:]+)\s*\(", head)
    return found.group(1) if found else "?"


def without_templates(text):
    while True:
        shorter = re.sub(r"<[^<>(){};]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def is_method(statement):
    """A declaration at class level: a function, or a data member."""
    text = without_templates(re.sub(r"\[\[\w+\]\]", "", statement))
    head = re.split(r"=(?!=)", text)[0] if not OPERATOR.search(text) else text
    return "(" in head and not re.match(r"\s*(?:std::)?function\b", text)


def num_names(statement):
    """`int a = 1, b{}` declares two."""
    text = re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", without_templates(statement))
    return 1 + text.count(",")


NO_MEMBER = re.compile(r"^\s*(?:using|typedef|friend|static_assert|template\s*<[^>]*>\s*(?:class|struct)\s+\w+$|enum|class\s+\w+\s*$|struct\s+\w+\s*$|static\s+constexpr|static\s+inline\s+constexpr|$)")


def parse(path):
    """(functions as (name, line, length), classes as Block)."""
    text = strip((ROOT / path).read_text())
    functions, classes, stack = [], [], []
    statement, line, start = "", 1, 1
    depth_parentheses = 0
    for character in text:
        if character == "\n":
            line += 1
        top = stack[-1] if stack else None
        inside = any(block.kind == "function" for block in stack)
        if character == "(":
            depth_parentheses += 1
        elif character == ")":
            depth_parentheses -= 1
        if character == "{":
            head = statement.strip()
            if depth_parentheses > 0 or inside:
                stack.append(Block("inner", "", line))
            elif re.search(r"\bnamespace\b[\w:\s]*$", head) or re.search(r'extern\s+""\s*$', head):
                stack.append(Block("namespace", "", line))
            elif HEAD_OF_CLASS.search(head) and not FUNCTION_END.search(head):
                stack.append(Block("class", HEAD_OF_CLASS.search(head).group(2), line))
                classes.append(stack[-1])
            elif re.search(r"\benum\b", head):
                stack.append(Block("enum", "", line))
            elif "(" in without_templates(head) and "=" not in re.sub(r"operator\s*\S+|[=!<>]=", "", head.split("(")[0]) and (
                FUNCTION_END.search(head) or re.search(r"\)\s*(?:noexcept\s*)?:\s*(?!:)", head)
            ):
                # An initialiser list: `: a_{1}, b_(2) {`; its braces belong to the statement.
                if re.search(r"\)\s*(?:noexcept\s*)?:\s*(?!:)", head) and re.search(r"[\w>]\s*$", head):
                    stack.append(Block("inner", "", line))
                    statement += character
                    continue
                block = Block("function", name_of_function(head), start)
                stack.append(block)
                if top and top.kind == "class":
                    top.methods += 1
            else:
                stack.append(Block("inner", "", line))
            if stack[-1].kind != "inner":
                statement = ""
            else:
                statement += character
            continue
        if character == "}":
            if not stack:
                continue
            block = stack.pop()
            if block.kind == "function":
                functions.append((block.name, block.line, line - block.line + 1))
                statement = ""
            elif block.kind == "inner":
                statement += character
            else:
                statement = ""
            continue
        if inside:
            continue
        if character == ";" and depth_parentheses == 0:
            if top and top.kind == "class":
                text_of = re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", "", statement.strip())
                text_of = re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", "", text_of)
                if not NO_MEMBER.match(text_of):
                    if is_method(text_of):
                        top.methods += 1
                    else:
                        top.members += num_names(text_of)
            statement = ""
            continue
        if not statement.strip() and not character.isspace():
            start = line
        statement += character
    return functions, classes


def include_circles():
    """Modules (a header with its source) of src/ that include each other, directly or through others."""
    edges = collections.defaultdict(set)
    for path in tracked("src"):
        if not path.endswith((".h", ".cpp", ".cu", ".cuh")):
            continue
        module = path[len("src/") :].rsplit(".", 1)[0]
        for used in re.findall(r'^#include "([^"]+)\.(?:h|cuh)"', (ROOT / path).read_text(), re.MULTILINE):
            if used != module:
                edges[module].add(used)
    index, low, on, stack, circles = {}, {}, set(), [], []
    sys.setrecursionlimit(10000)

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for following in edges.get(node, ()):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in on:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                on.discard(component[-1])
                if component[-1] == node:
                    break
            if len(component) > 1:
                circles.append(sorted(component))

    for node in list(edges):
        if node not in index:
            visit(node)
    return circles


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def main():
    problems = []
    code = [path for path in tracked("src", "cli", "include") if path.endswith((".cpp", ".h", ".cu", ".cuh"))]
    functions, classes = [], []
    for path in code:
        found_functions, found_classes = parse(path)
        functions += [(length, f"{path}:{line} {name}") for name, line, length in found_functions]
        classes += [(block.members, block.methods, block.name, f"{path}:{block.line}") for block in found_classes]
    lengths = [length for length, _ in functions]
    p99 = percentile(lengths, 0.99)
    print(f"functions: {len(functions)}, median {percentile(lengths, 0.5)}, p99 {p99} (limit {P99_FUNCTION}), longest {max(lengths)} (limit {LONGEST_FUNCTION})")
    if p99 > P99_FUNCTION:
        problems.append(f"functions: p99 is {p99} lines, more than {P99_FUNCTION}")
    for length, place in functions:
        if length > LONGEST_FUNCTION and place.split()[-1] not in LONG_FUNCTIONS:
            problems.append(f"{place}: {length} lines")

    files = [(len((ROOT / path).read_text().splitlines()), path) for path in code]
    print(f"files: {len(files)}, median {percentile([n for n, _ in files], 0.5)}, longest {max(files)[0]} (limit {LONGEST_FILE})")
    problems += [f"{path}: {lines} lines, more than {LONGEST_FILE}" for lines, path in files if lines > LONGEST_FILE]

    large = [one for one in classes if one[1] > 0 and (one[0] > MOST_MEMBERS or one[1] > MOST_METHODS)]
    print(f"classes: {len(classes)}, above {MOST_MEMBERS} members or {MOST_METHODS} methods: {len(large)} (limit {MOST_LARGE_CLASSES}, each with its reason)")
    for members, methods, name, place in large:
        if name in LARGE_CLASSES:
            print(f"  {name}: {members} members, {methods} methods: {LARGE_CLASSES[name]}")
        else:
            problems.append(f"{place} {name}: {members} data members, {methods} methods")
    if len(LARGE_CLASSES) > MOST_LARGE_CLASSES:
        problems.append(f"{len(LARGE_CLASSES)} classes are excepted, more than {MOST_LARGE_CLASSES}")

    folders = collections.Counter(path.rsplit("/", 1)[0] for path in code)
    folder, count = folders.most_common(1)[0]
    print(f"folders: {len(folders)}, largest {folder} with {count} files (limit {LARGEST_FOLDER})")
    problems += [f"{folder}: {count} files, more than {LARGEST_FOLDER}" for folder, count in folders.items() if count > LARGEST_FOLDER]

    circles = include_circles()
    print(f"include circles: {len(circles)}")
    problems += ["include circle: " + " ".join(circle) for circle in circles]

    wide = 0
    for path in tracked("*.cpp", "*.h", "*.cu", "*.cuh"):
        for number, text in enumerate((ROOT / path).read_text().splitlines(), 1):
            if len(text) > WIDEST_LINE:
                wide += 1
                problems.append(f"{path}:{number}: {len(text)} columns, more than {WIDEST_LINE}")
    print(f"lines above {WIDEST_LINE} columns: {wide}")

    listed = [path for path in tracked("CMakeLists.txt", "*/CMakeLists.txt", "*.cmake") if re.search(r"foreach\(name(?:\s+\w+){12,}", (ROOT / path).read_text())]
    print(f"sources listed by hand: {len(listed)}")
    problems += [f"{path}: lists sources by hand" for path in listed]

    banned = 0
    for path in tracked("src", "cli", "include", "tests", "bench", "examples", "scripts", "docs", "*.md", "test", "optimus"):
        if (path in ALLOWED and ALLOWED[path] is None) or not path.endswith((".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".md", "test", "optimus")):
            continue
        for number, text in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
            for word in BANNED.findall(text) + BANNED_NAMES.findall(text):
                if word.lower() == ALLOWED.get(path):
                    continue
                banned += 1
                problems.append(f"{path}:{number}: '{word[0] if isinstance(word, tuple) else word}' is a word of the old vocabulary (docs/glossary.md)")
    print(f"words of the old vocabulary: {banned}")

    if "--all" in sys.argv:
        for length, place in sorted(functions, reverse=True)[:40]:
            print(f"  {length:4} {place}")
        for members, methods, name, place in sorted(classes, key=lambda one: -max(one[0] / MOST_MEMBERS, one[1] / MOST_METHODS))[:30]:
            print(f"  {members:3} members {methods:3} methods {name} {place}")
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


sys.exit(main())
