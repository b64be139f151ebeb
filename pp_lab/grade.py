"""`python -m pp_lab.grade SUBMISSIONS… [--self NOTEBOOK]`: see `pp_lab.course.grading`."""

from .course.grading.main import main

if __name__ == "__main__":
    raise SystemExit(main())
