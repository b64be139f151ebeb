"""`python -m pp_lab.release [--check]`: see `pp_lab.course.release`."""

from .course.release import main

if __name__ == "__main__":
    raise SystemExit(main())
