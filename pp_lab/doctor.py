"""`python -m pp_lab.doctor`: see `pp_lab.course.doctor`."""

from .course.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
