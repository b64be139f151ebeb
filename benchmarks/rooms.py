"""The rooms of the package: python benchmarks/rooms.py [CHECKOUT]

Prints the lines of each room, the arrows between rooms (how many files import another room), the
way through the files that a reader goes who follows `simulate`, and how many exercises are judged
where there is no torch. CHECKOUT: of which checkout, this one unless given.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import test_rooms as rooms


def main(root):
    rooms.ROOT, rooms.PACKAGE = root, root / "pp_lab"
    folders = sorted({path.parent for path in rooms.PACKAGE.glob("*/*.py")})
    rooms.MAY_IMPORT = dict.fromkeys(folder.name for folder in folders)
    print(f"{'room':10} {'files':>5} {'lines':>6}  longest file")
    total = 0
    for folder in [rooms.PACKAGE, *folders]:
        paths = [*folder.glob("*.py")] if folder == rooms.PACKAGE else [*folder.rglob("*.py")]
        lines = {path: len(path.read_text("utf-8").splitlines()) for path in paths}
        longest = max(lines, key=lines.get)
        name = "commands" if folder == rooms.PACKAGE else folder.name
        print(f"{name:10} {len(lines):5} {sum(lines.values()):6}  {longest.name} "
              f"{lines[longest]}")  # fmt: skip
        total += sum(lines.values())
    print(f"{'all':10} {'':5} {total:6}\n")
    for folder in folders:
        arrows = Counter(
            room
            for path in rooms.files(folder.name)
            for room in {rooms.room_of(module) for module in rooms.imports(path, root)}
        )
        arrows = {to: n for to, n in arrows.items() if to not in (None, folder.name)}
        to = ", ".join(f"{room} ({n})" for room, n in sorted(arrows.items()))
        print(f"{folder.name:10} imports {to or 'no other room'}")
    start = next(
        file for file, (_, own) in rooms.functions("schedule").items() if "simulate" in own
    )
    steps, returns = rooms.way((start, "simulate"))
    print(f"\nsimulate: {' → '.join(steps)}\n{returns} times back to a file left before")
    if (root / "tests" / "without_torch.py").exists():
        command = [sys.executable, "tests/without_torch.py"]
        found = json.loads(subprocess.run(command, cwd=root, capture_output=True).stdout)
        judged = {
            lab: [name for name, (points, of, _) in exercises.items() if points == of]
            for lab, exercises in found.items()
        }
        print(f"\njudged without torch: {sum(map(len, judged.values()))} exercises")
        for lab, names in judged.items():
            print(f"  {lab}: {' '.join(names)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).parents[1])
