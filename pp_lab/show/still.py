"""A picture that stands still: shown as a PNG whose alt text is the object's repr."""

import html

from .live import embedded


class Still:
    """What has a `png`, bytes, and says in its repr what is seen."""

    def save(self, path):
        """Write the picture as a PNG file."""
        with open(path, "wb") as file:
            file.write(self.png)

    def _repr_mimebundle_(self, include=None, exclude=None):
        try:
            picture = embedded("png", self.png)
        except ImportError:  # without matplotlib there is the text
            return {"text/plain": repr(self)}
        alt = html.escape(repr(self), quote=True)
        return {
            "text/plain": repr(self),
            "text/html": f'<img alt="{alt}" src="{picture}" style="max-width:100%;height:auto">',
        }
