"""The command: python -m pp_lab.explore, the explorer as a page of its own, without torch.

`pp_lab.explore` is also the function that shows it in a notebook. So that the function is what
one gets under that name, whether or not this file was imported, importing it gives the
function (the last line).
"""

import sys

if __name__ == "__main__":
    from .show.page import main

    main()
else:
    from .show.widget import explore

    sys.modules[__name__] = explore
