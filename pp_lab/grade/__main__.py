"""`python -m pp_lab.grade SUBMISSIONS… [--self NOTEBOOK]`"""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
